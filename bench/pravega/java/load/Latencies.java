package load;

import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/** Latencies by the nanosecond, and the longest time in which nothing finished. */
final class Latencies {
    private final long[] nanos;
    private final AtomicInteger used = new AtomicInteger();
    private final AtomicLong last = new AtomicLong(System.nanoTime());
    private final AtomicLong gap = new AtomicLong();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private long count;
    private long elapsed = 1;

    Latencies(int max) {
        nanos = new long[max];
    }

    /** An event that began at `begun` is finished; 0 if that was not noted. */
    void finished(long begun, Throwable error) {
        if (error != null) {
            failure.compareAndSet(null, error);
            return;
        }
        long now = System.nanoTime();
        long before = last.getAndSet(now);
        gap.accumulateAndGet(now - before, Math::max);
        if (begun != 0) {
            int index = used.getAndIncrement();
            if (index < nanos.length) {
                nanos[index] = now - begun;
            }
        }
    }

    /** What it was all together. */
    void summarize(long events, long elapsedNanos) {
        count = events;
        elapsed = elapsedNanos;
        if (failure.get() != null) {
            throw new IllegalStateException("an event failed", failure.get());
        }
    }

    String toJson() {
        int size = Math.min(used.get(), nanos.length);
        long[] sorted = Arrays.copyOf(nanos, size);
        Arrays.sort(sorted);
        double seconds = elapsed / 1e9;
        return String.format(Locale.ROOT,
                "{\"count\": %d, \"seconds\": %.6f, \"per_s\": %.3f, \"p50_ms\": %.4f,"
                + " \"p99_ms\": %.4f, \"p999_ms\": %.4f, \"max_gap_ms\": %.4f}",
                count, seconds, count / seconds, at(sorted, 0.5), at(sorted, 0.99),
                at(sorted, 0.999), gap.get() / 1e6);
    }

    private static double at(long[] sorted, double share) {
        int index = Math.min(sorted.length - 1, (int) (share * sorted.length));
        return sorted.length == 0 ? 0 : sorted[index] / 1e6;
    }
}
