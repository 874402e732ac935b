package clients;

import static clients.World.check;
import static clients.World.equal;

import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import io.pravega.client.state.InitialUpdate;
import io.pravega.client.state.Revision;
import io.pravega.client.state.Revisioned;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.StateSynchronizer;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.state.Update;
import io.pravega.client.stream.TruncatedDataException;
import io.pravega.client.stream.impl.JavaSerializer;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Streams of one segment: bytes, and revisions. */
final class SegmentSteps {
    private static final int BYTES = 3_000_000;
    private static final int ADDITIONS = 50;

    private SegmentSteps() {}

    static void byteStream(World world) throws Exception {
        world.createStream("stream", 1);
        byte[] data = new byte[BYTES];
        new Random(2).nextBytes(data);
        try (ByteStreamClientFactory bytes =
                        ByteStreamClientFactory.withScope(world.scope, world.config);
                ByteStreamWriter writer = bytes.createByteStreamWriter("stream");
                ByteStreamReader reader = bytes.createByteStreamReader("stream")) {
            writer.write(data, 0, BYTES / 2);
            writer.write(data, BYTES / 2, BYTES - BYTES / 2);
            writer.flush();
            check(Arrays.equals(data, read(reader, BYTES)), "the bytes are those written");
            equal((long) BYTES, writer.fetchTailOffset(), "tail");
            writer.truncateDataBefore(BYTES / 2);
            equal((long) BYTES / 2, reader.fetchHeadOffset(), "head");
            reader.seekToOffset(BYTES - 5);
            byte[] last = Arrays.copyOfRange(data, BYTES - 5, BYTES);
            check(Arrays.equals(last, read(reader, 5)), "the last bytes");
            writer.closeAndSeal();
            equal(-1, reader.read(), "behind the last byte of a sealed stream");
        }
        check(world.streams.sealStream(world.scope, "stream"), "sealed again");
        check(world.streams.deleteStream(world.scope, "stream"), "deleted");
    }

    /** `readNBytes` ends with a read of no bytes, for which this reader waits. */
    private static byte[] read(ByteStreamReader reader, int count) throws Exception {
        byte[] found = new byte[count];
        for (int taken = 0; taken < count;) {
            taken += reader.read(found, taken, count - taken);
        }
        return found;
    }

    static void revisions(World world) {
        world.createStream("stream", 1);
        try (SynchronizerClientFactory synchronizers =
                        SynchronizerClientFactory.withScope(world.scope, world.config);
                RevisionedStreamClient<String> client = synchronizers.createRevisionedStreamClient(
                        "stream", new UTF8StringSerializer(),
                        SynchronizerConfig.builder().build())) {
            Revision start = client.fetchLatestRevision();
            Revision first = client.writeConditionally(start, "first");
            check(first != null, "the first condition holds");
            equal(null, client.writeConditionally(start, "too late"), "a condition that fails");
            client.writeUnconditionally("second");
            Revision second = client.fetchLatestRevision();
            Revision third = client.writeConditionally(second, "third");
            equal(List.of("first", "second", "third"), values(client.readFrom(start)), "all");
            equal(List.of("second"), values(client.readRange(first, second)), "a range");
            marks(client, first, second);
            client.truncateToRevision(second);
            equal(second, client.fetchOldestRevision(), "oldest revision");
            equal(List.of("third"), values(client.readFrom(second)), "behind the truncation");
            try {
                client.readFrom(start).next();
                throw new AssertionError("truncated data were read");
            } catch (TruncatedDataException expected) {
                equal(third, client.fetchLatestRevision(), "latest revision");
            }
        }
    }

    private static void marks(RevisionedStreamClient<String> client, Revision one, Revision two) {
        equal(null, client.getMark(), "no mark yet");
        check(client.compareAndSetMark(null, one), "set where there was none");
        check(!client.compareAndSetMark(null, two), "not set where there is one");
        check(!client.compareAndSetMark(two, one), "not set in place of another");
        check(client.compareAndSetMark(one, two), "set in place of the one there is");
        equal(two, client.getMark(), "mark");
        check(client.compareAndSetMark(two, null), "removed");
        equal(null, client.getMark(), "no mark again");
        check(client.compareAndSetMark(null, one), "set again");
    }

    private static List<String> values(Iterator<Map.Entry<Revision, String>> entries) {
        List<String> found = new ArrayList<>();
        entries.forEachRemaining(entry -> found.add(entry.getValue()));
        return found;
    }

    /** Two that add to one sum at a time, each on top of what it knows. */
    static void synchronizer(World world) throws Exception {
        world.createStream("stream", 1);
        ExecutorService threads = Executors.newFixedThreadPool(2);
        try (SynchronizerClientFactory synchronizers =
                SynchronizerClientFactory.withScope(world.scope, world.config)) {
            // Alone: who loses a race for it may not see yet what has won.
            try (StateSynchronizer<Sum> first = synchronizer(synchronizers)) {
                first.initialize(new Start());
            }
            List<Future<Integer>> sums = new ArrayList<>();
            for (int number = 0; number < 2; number++) {
                sums.add(threads.submit(() -> add(synchronizers)));
            }
            int most = 0;
            for (Future<Integer> sum : sums) {
                most = Math.max(most, sum.get());
            }
            equal(2 * ADDITIONS, most, "the sum that the last of them saw");
        }
        threads.shutdown();
    }

    private static StateSynchronizer<Sum> synchronizer(SynchronizerClientFactory synchronizers) {
        return synchronizers.createStateSynchronizer(
                "stream", new JavaSerializer<Addition>(), new JavaSerializer<Start>(),
                SynchronizerConfig.builder().build());
    }

    private static int add(SynchronizerClientFactory synchronizers) {
        try (StateSynchronizer<Sum> synchronizer = synchronizer(synchronizers)) {
            synchronizer.fetchUpdates();
            for (int number = 0; number < ADDITIONS; number++) {
                synchronizer.updateState((state, updates) -> {
                    updates.add(new Addition(state.sum));
                });
            }
            return synchronizer.getState().sum;
        }
    }

    private static final class Sum implements Revisioned {
        private final String stream;
        private final Revision revision;
        private final int sum;

        Sum(String stream, Revision revision, int sum) {
            this.stream = stream;
            this.revision = revision;
            this.sum = sum;
        }

        @Override
        public String getScopedStreamName() {
            return stream;
        }

        @Override
        public Revision getRevision() {
            return revision;
        }
    }

    private static final class Start implements InitialUpdate<Sum>, Serializable {
        private static final long serialVersionUID = 1L;

        @Override
        public Sum create(String stream, Revision revision) {
            return new Sum(stream, revision, 0);
        }
    }

    /** It is right on top of what its writer knew alone. */
    private static final class Addition implements Update<Sum>, Serializable {
        private static final long serialVersionUID = 1L;
        private final int known;

        Addition(int known) {
            this.known = known;
        }

        @Override
        public Sum applyTo(Sum state, Revision revision) {
            equal(known, state.sum, "what the update was written on top of");
            return new Sum(state.stream, revision, state.sum + 1);
        }
    }
}
