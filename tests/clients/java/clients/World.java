package clients;

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
import io.pravega.client.stream.impl.UTF8StringSerializer;
import io.pravega.shared.security.auth.DefaultCredentials;
import java.net.URI;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;

/** The clients of one step, in its scope. */
final class World implements AutoCloseable {
    static final int KEYS = 17;
    private static final long READ_MS = 1_000;
    private static final long ENOUGH_NS = 120_000_000_000L;

    final String scope;
    final ClientConfig config;
    final StreamManager streams;
    final EventStreamClientFactory events;
    final ReaderGroupManager groups;

    World(String uri, String scope) {
        this.scope = scope;
        config = configuration(uri, System.getenv("pravega_client_auth_password"));
        streams = StreamManager.create(config);
        check(streams.createScope(scope), "the scope is new");
        events = EventStreamClientFactory.withScope(scope, config);
        groups = ReaderGroupManager.withScope(scope, config);
    }

    /**
     * With TLS and a user if the URI begins with `tls:`. The names are those of the wheel.
     *
     * A question that misses the next owner of a container for a second is asked again after 10 s,
     * then 30. State of reader groups waits for the answer as long as a connection may take.
     */
    static ClientConfig configuration(String uri, String password) {
        var builder = ClientConfig.builder()
                .controllerURI(URI.create(uri))
                .connectTimeoutMilliSec(TimeUnit.SECONDS.toMillis(90));
        if (uri.startsWith("tls:")) {
            builder.trustStore(System.getenv("pravega_client_tls_cert_path"));
            builder.credentials(new DefaultCredentials(
                    password, System.getenv("pravega_client_auth_username")));
        }
        return builder.build();
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError("not so: " + what);
        }
    }

    static void equal(Object expected, Object found, String what) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }

    static StreamConfiguration segments(int count) {
        return StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(count)).build();
    }

    void createStream(String stream, int segmentCount) {
        check(streams.createStream(scope, stream, segments(segmentCount)), stream + " is new");
    }

    EventStreamWriter<String> writer(String stream) {
        return events.createEventWriter(
                stream, new UTF8StringSerializer(), EventWriterConfig.builder().build());
    }

    /** Events from..to, each with its number, which grows within a key. */
    void write(String stream, int from, int to) {
        try (EventStreamWriter<String> writer = writer(stream)) {
            for (int number = from; number < to; number++) {
                writer.writeEvent(key(number), key(number) + " " + number);
            }
            writer.flush();
        }
    }

    static String key(int number) {
        return "key" + number % KEYS;
    }

    void createGroup(String group, String stream) {
        ReaderGroupConfig config = ReaderGroupConfig.builder()
                .stream(Stream.of(scope, stream)).automaticCheckpointIntervalMillis(1_000).build();
        check(groups.createReaderGroup(group, config), "the group is new");
    }

    EventStreamReader<String> reader(String group, String name) {
        return events.createReader(
                name, group, new UTF8StringSerializer(), ReaderConfig.builder().build());
    }

    /** The events that a new group of one reader finds, until it has so many. */
    List<String> read(String stream, int count) {
        String group = "all-of-" + stream;
        createGroup(group, stream);
        try (EventStreamReader<String> reader = reader(group, group)) {
            return take(reader, count);
        }
    }

    static List<String> take(EventStreamReader<String> reader, int count) {
        List<String> found = new ArrayList<>();
        long end = System.nanoTime() + ENOUGH_NS;
        while (found.size() < count) {
            check(System.nanoTime() < end, found.size() + " of " + count + " events are all");
            String event = reader.readNextEvent(READ_MS).getEvent();
            if (event != null) {
                found.add(event);
            }
        }
        return found;
    }

    /** Nothing more comes for a moment. */
    static void nothing(EventStreamReader<String> reader) {
        EventRead<String> read = reader.readNextEvent(READ_MS);
        while (read.isCheckpoint()) {
            read = reader.readNextEvent(READ_MS);
        }
        equal(null, read.getEvent(), "an event behind the last one");
    }

    /** Events from..to are there once, and each key's in the order of its numbers. */
    static void checkOrder(List<String> found, int from, int to) {
        equal(byKey(numbered(from, to)), byKey(found), "the events by key");
    }

    private static List<String> numbered(int from, int to) {
        List<String> all = new ArrayList<>();
        for (int number = from; number < to; number++) {
            all.add(key(number) + " " + number);
        }
        return all;
    }

    private static Map<String, List<String>> byKey(List<String> found) {
        Map<String, List<String>> sorted = new HashMap<>();
        for (String event : found) {
            sorted.computeIfAbsent(event.split(" ")[0], key -> new ArrayList<>()).add(event);
        }
        return sorted;
    }

    @Override
    public void close() {
        groups.close();
        events.close();
        streams.close();
    }
}
