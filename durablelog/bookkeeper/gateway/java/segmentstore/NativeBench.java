package segmentstore;

import com.sun.management.OperatingSystemMXBean;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;

/**
 * What the client itself can do: entries of one size, so many in flight, for so many seconds,
 * copied nowhere.
 */
final class NativeBench {
    private static final int SAMPLES_MAX = 4_000_000;

    private NativeBench() {}

    static String run(
            Session session, int ensemble, int write, int ack, int size, int window, double seconds)
            throws Exception {
        LedgerHandle writer = (LedgerHandle) session.client().newCreateLedgerOp()
                .withEnsembleSize(ensemble).withWriteQuorumSize(write).withAckQuorumSize(ack)
                .withDigestType(DigestType.CRC32C).withPassword(session.password).execute().get();
        ByteBuf payload = Unpooled.directBuffer(size).writeZero(size);
        int[] micros = new int[(int) Math.min(SAMPLES_MAX, seconds * 200_000 + window)];
        AtomicInteger done = new AtomicInteger();
        AtomicInteger failure = new AtomicInteger();
        Semaphore room = new Semaphore(window);
        long cpu = cpuMicros();
        long start = System.nanoTime();
        long until = start + (long) (seconds * 1e9);
        while (System.nanoTime() < until && failure.get() == 0) {
            room.acquire();
            session.unacknowledged.addAndGet(size + AddConnection.ENTRY_OVERHEAD);
            long sent = System.nanoTime();
            writer.asyncAddEntry(payload.retainedDuplicate(), (code, handle, entry, context) -> {
                if (code != Codes.OK) {
                    failure.compareAndSet(0, code);
                }
                int number = done.getAndIncrement();
                micros[number % micros.length] = (int) ((System.nanoTime() - sent) / 1000);
                session.unacknowledged.addAndGet(-size - AddConnection.ENTRY_OVERHEAD);
                room.release();
            }, null);
        }
        room.acquire(window);
        double took = (System.nanoTime() - start) / 1e9;
        double used = cpuMicros() - cpu;
        long ledger = writer.getId();
        writer.close();
        session.client().newDeleteLedgerOp().withLedgerId(ledger).execute().get();
        payload.release();
        int entries = done.get();
        int samples = Math.min(entries, micros.length);
        Arrays.sort(micros, 0, samples);
        return String.format(Locale.ROOT,
                "{\"code\": %d, \"entries\": %d, \"seconds\": %.4f,"
                        + " \"entries_per_s\": %.1f, \"mb_per_s\": %.3f,"
                        + " \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"cpu_us_per_entry\": %.2f}",
                failure.get(), entries, took, entries / took, entries / took * size / 1e6,
                micros[samples / 2] / 1e3, micros[(int) (samples * 0.99)] / 1e3, used / entries);
    }

    static long cpuMicros() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime() / 1000;
    }
}
