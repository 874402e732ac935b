package load;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Semaphore;

/**
 * One load of Pravega's Java client: `WireLoad URI LOAD NAME=VALUE...`. Writes "begun" where the
 * measured part begins. The last line of its output has what it came to, as JSON behind "result ".
 */
final class WireLoad {
    static final String SCOPE = "bench";
    private static final String KEY = "key";
    private static final long READ_MS = 100;
    private static final long IN_FLIGHT_BYTES = 64L << 20;
    private static final int IN_FLIGHT_MAX = 200_000;

    private final Map<String, Long> numbers = new HashMap<>();
    private final String stream;
    private final ClientConfig config;

    private WireLoad(String uri, String[] given) {
        var builder = ClientConfig.builder().controllerURI(URI.create(uri));
        if (uri.startsWith("tls:")) {
            builder.trustStore(System.getenv("pravega_client_tls_cert_path"));
        }
        config = builder.build();
        String name = "stream";
        for (int index = 2; index < given.length; index++) {
            String[] pair = given[index].split("=", 2);
            if (pair[0].equals("stream")) {
                name = pair[1];
            } else {
                numbers.put(pair[0], Long.parseLong(pair[1]));
            }
        }
        stream = name;
    }

    public static void main(String[] arguments) throws Exception {
        WireLoad load = new WireLoad(arguments[0], arguments);
        load.createStream();
        Latencies result = switch (arguments[1]) {
            case "fast" -> load.writeFast();
            case "paced" -> load.writePaced();
            case "count" -> load.writeCount();
            case "read" -> load.read();
            case "tail" -> load.tail();
            case "burst" -> load.burst();
            default -> throw new IllegalArgumentException(arguments[1]);
        };
        System.out.println("result " + result.toJson());
        System.out.flush();
        // Threads of the client may still wait for what does not come.
        Runtime.getRuntime().halt(0);
    }

    private static void sayBegun() {
        System.out.println("begun");
        System.out.flush();
    }

    private long number(String name) {
        return numbers.get(name);
    }

    private void createStream() {
        try (StreamManager streams = StreamManager.create(config)) {
            streams.createScope(SCOPE);
            int segments = Math.toIntExact(numbers.getOrDefault("segments", 1L));
            streams.createStream(SCOPE, stream, StreamConfiguration.builder()
                    .scalingPolicy(ScalingPolicy.fixed(segments)).build());
        }
    }

    private EventStreamClientFactory factory() {
        return EventStreamClientFactory.withScope(SCOPE, config);
    }

    private EventStreamWriter<ByteBuffer> writer(EventStreamClientFactory events) {
        return events.createEventWriter(
                stream, new ByteBufferSerializer(), EventWriterConfig.builder().build());
    }

    private Semaphore window(int size) {
        return new Semaphore((int) Math.min(IN_FLIGHT_MAX, Math.max(16, IN_FLIGHT_BYTES / size)));
    }

    /** For `seconds`, behind `warm` seconds of the same; the rate is that of acknowledgements. */
    private Latencies writeFast() throws Exception {
        int size = Math.toIntExact(number("bytes"));
        try (EventStreamClientFactory events = factory();
                EventStreamWriter<ByteBuffer> writer = writer(events)) {
            writeFor(writer, size, number("warm"));
            sayBegun();
            return writeFor(writer, size, number("seconds"));
        }
    }

    private Latencies writeFor(EventStreamWriter<ByteBuffer> writer, int size, long seconds)
            throws Exception {
        Semaphore window = window(size);
        int all = window.availablePermits();
        Latencies latencies = new Latencies(1 << 20);
        byte[] event = new byte[size];
        long begun = System.nanoTime();
        long end = begun + seconds * 1_000_000_000L;
        long count = 0;
        long now = begun;
        while (now < end) {
            for (int batch = 0; batch < 64; batch++) {
                window.acquire();
                long sent = batch == 0 ? System.nanoTime() : 0;
                writer.writeEvent(KEY, ByteBuffer.wrap(event)).whenComplete((done, error) -> {
                    window.release();
                    latencies.finished(sent, error);
                });
            }
            count += 64;
            now = System.nanoTime();
        }
        writer.flush();
        window.acquire(all);
        latencies.summarize(count, System.nanoTime() - begun);
        return latencies;
    }

    /** `count` events; says where it is, so that it can be killed, or its server. */
    private Latencies writeCount() throws Exception {
        int size = Math.toIntExact(number("bytes"));
        long count = number("count");
        Semaphore window = window(size);
        int all = window.availablePermits();
        Latencies latencies = new Latencies(1 << 20);
        sayBegun();
        long begun = System.nanoTime();
        try (EventStreamClientFactory events = factory();
                EventStreamWriter<ByteBuffer> writer = writer(events)) {
            for (long number = 0; number < count; number++) {
                window.acquire();
                writer.writeEvent(KEY, ByteBuffer.allocate(size)).whenComplete((done, error) -> {
                    window.release();
                    latencies.finished(0, error);
                });
            }
            writer.flush();
            window.acquire(all);
        }
        latencies.summarize(count, System.nanoTime() - begun);
        return latencies;
    }

    /** `rate` events a second in an open loop: an event's time begins when it was due. */
    private Latencies writePaced() throws Exception {
        int size = Math.toIntExact(number("bytes"));
        try (EventStreamClientFactory events = factory();
                EventStreamWriter<ByteBuffer> writer = writer(events)) {
            Latencies warm = new Latencies(1 << 22);
            pace(writer, size, number("warm"), warm);
            Latencies latencies = new Latencies(1 << 22);
            sayBegun();
            long begun = System.nanoTime();
            long count = pace(writer, size, number("seconds"), latencies);
            latencies.summarize(count, System.nanoTime() - begun);
            return latencies;
        }
    }

    private long pace(
            EventStreamWriter<ByteBuffer> writer, int size, long seconds, Latencies latencies) {
        long rate = number("rate");
        long begun = System.nanoTime();
        long count = rate * seconds;
        for (long number = 0; number < count; number++) {
            long due = begun + number * 1_000_000_000L / rate;
            waitUntil(due);
            ByteBuffer event = ByteBuffer.allocate(size);
            event.putLong(0, due);
            writer.writeEvent(KEY, event)
                    .whenComplete((done, error) -> latencies.finished(due, error));
        }
        writer.flush();
        return count;
    }

    private static void waitUntil(long due) {
        long left = due - System.nanoTime();
        while (left > 0) {
            java.util.concurrent.locks.LockSupport.parkNanos(left);
            left = due - System.nanoTime();
        }
    }

    private EventStreamReader<ByteBuffer> reader(EventStreamClientFactory events) {
        String group = stream + "-" + System.nanoTime();
        try (ReaderGroupManager groups = ReaderGroupManager.withScope(SCOPE, config)) {
            groups.createReaderGroup(group, ReaderGroupConfig.builder()
                    .stream(Stream.of(SCOPE, stream)).build());
        }
        return events.createReader(
                "reader", group, new ByteBufferSerializer(), ReaderConfig.builder().build());
    }

    /** `count` events from the head of the stream; the time begins with the first call. */
    private Latencies read() {
        Latencies latencies = new Latencies(1);
        long count = number("count");
        try (EventStreamClientFactory events = factory();
                EventStreamReader<ByteBuffer> reader = reader(events)) {
            sayBegun();
            long begun = System.nanoTime();
            long found = 0;
            while (found < count) {
                if (reader.readNextEvent(READ_MS).getEvent() != null) {
                    found++;
                }
            }
            latencies.summarize(count, System.nanoTime() - begun);
        }
        return latencies;
    }

    /** Paced, with a reader in this process: from when an event was due until it was read. */
    private Latencies tail() throws Exception {
        long rate = number("rate");
        long warm = rate * number("warm");
        long count = rate * number("seconds");
        Latencies latencies = new Latencies(1 << 22);
        int size = Math.toIntExact(number("bytes"));
        try (EventStreamClientFactory events = factory();
                EventStreamReader<ByteBuffer> reader = reader(events);
                EventStreamWriter<ByteBuffer> writer = writer(events)) {
            long begun = System.nanoTime();
            Latencies acks = new Latencies(1 << 22);
            Thread writing = new Thread(() -> {
                pace(writer, size, number("warm"), acks);
                sayBegun();
                pace(writer, size, number("seconds"), acks);
            });
            writing.start();
            for (long found = 0; found < warm + count;) {
                EventRead<ByteBuffer> read = reader.readNextEvent(READ_MS);
                ByteBuffer event = read.getEvent();
                if (event != null && ++found > warm) {
                    latencies.finished(event.getLong(event.position()), null);
                }
            }
            writing.join();
            latencies.summarize(count, System.nanoTime() - begun);
        }
        return latencies;
    }

    /**
     * A few events, `idle` seconds of none, `count` of `large` bytes as fast as they go, and then
     * paced ones: the longest time without an acknowledgement, from the burst on.
     */
    private Latencies burst() throws Exception {
        int size = Math.toIntExact(number("bytes"));
        int large = Math.toIntExact(number("large"));
        long count = number("count");
        Semaphore window = window(large);
        int all = window.availablePermits();
        try (EventStreamClientFactory events = factory();
                EventStreamWriter<ByteBuffer> writer = writer(events)) {
            pace(writer, size, number("warm"), new Latencies(1 << 20));
            Thread.sleep(number("idle") * 1_000);
            Latencies latencies = new Latencies(1 << 22);
            sayBegun();
            long begun = System.nanoTime();
            for (long number = 0; number < count; number++) {
                window.acquire();
                writer.writeEvent(KEY, ByteBuffer.allocate(large))
                        .whenComplete((done, error) -> {
                            window.release();
                            latencies.finished(0, error);
                        });
            }
            // The paced ones do not wait for the end of the burst.
            long paced = pace(writer, size, number("seconds"), latencies);
            window.acquire(all);
            latencies.summarize(count + paced, System.nanoTime() - begun);
            return latencies;
        }
    }
}
