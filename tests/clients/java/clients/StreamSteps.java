package clients;

import static clients.World.check;
import static clients.World.equal;

import io.pravega.client.ClientConfig;
import io.pravega.client.admin.StreamInfo;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** What is done to whole streams. */
final class StreamSteps {
    private static final int COUNT = 600;

    private StreamSteps() {}

    /** Reading goes on at a checkpoint; a stream is truncated there. */
    static void checkpoint(World world) throws Exception {
        world.createStream("stream", 2);
        world.write("stream", 0, COUNT);
        ReaderGroupConfig config = ReaderGroupConfig.builder()
                .stream(Stream.of(world.scope, "stream")).disableAutomaticCheckpoints().build();
        world.groups.createReaderGroup("group", config);
        ScheduledExecutorService executor = Executors.newSingleThreadScheduledExecutor();
        List<String> before = new ArrayList<>();
        Checkpoint checkpoint;
        try (ReaderGroup group = world.groups.getReaderGroup("group")) {
            EventStreamReader<String> reader = world.reader("group", "reader");
            before.addAll(World.take(reader, COUNT / 2));
            CompletableFuture<Checkpoint> initiated =
                    group.initiateCheckpoint("here", executor);
            before.addAll(upTo(reader, "here"));
            // The reader reports that it has passed the checkpoint when it is asked again.
            List<String> behind = new ArrayList<>();
            while (!initiated.isDone()) {
                String event = reader.readNextEvent(100).getEvent();
                if (event != null) {
                    behind.add(event);
                }
            }
            checkpoint = initiated.get();
            reader.close();
            group.resetReaderGroup(
                    ReaderGroupConfig.builder().startFromCheckpoint(checkpoint).build());
        }
        try (EventStreamReader<String> reader = world.reader("group", "another")) {
            List<String> all = new ArrayList<>(before);
            all.addAll(World.take(reader, COUNT - before.size()));
            World.checkOrder(all, 0, COUNT);
        }
        Stream stream = Stream.of(world.scope, "stream");
        check(world.streams.truncateStream(
                world.scope, "stream", checkpoint.asImpl().getPositions().get(stream)), "cut");
        List<String> all = new ArrayList<>(before);
        all.addAll(world.read("stream", COUNT - before.size()));
        World.checkOrder(all, 0, COUNT);
        executor.shutdown();
    }

    private static List<String> upTo(EventStreamReader<String> reader, String name) {
        List<String> found = new ArrayList<>();
        while (true) {
            EventRead<String> read = reader.readNextEvent(1_000);
            if (read.isCheckpoint() && name.equals(read.getCheckpointName())) {
                return found;
            }
            if (read.getEvent() != null) {
                found.add(read.getEvent());
            }
        }
    }

    /** A segment is split, and two are merged, while events are written and read. */
    static void scaling(World world) throws Exception {
        world.createStream("stream", 2);
        Stream stream = Stream.of(world.scope, "stream");
        ScheduledExecutorService executor = Executors.newScheduledThreadPool(2);
        world.createGroup("group", "stream");
        List<String> found = new ArrayList<>();
        int written = 0;
        try (Controller controller = new ControllerImpl(
                        ControllerImplConfig.builder().clientConfig(world.config).build(),
                        executor);
                EventStreamWriter<String> writer = world.writer("stream");
                EventStreamReader<String> reader = world.reader("group", "reader")) {
            List<Map<Double, Double>> ranges =
                    List.of(Map.of(0.0, 0.2, 0.2, 0.5), Map.of(0.2, 1.0));
            List<List<Long>> sealed = List.of(List.of(0L), List.of(1L, (1L << 32) + 3));
            for (int number = 0; number < 2; number++) {
                CompletableFuture<Boolean> scaled = controller.scaleStream(
                        stream, sealed.get(number), ranges.get(number), executor).getFuture();
                while (!scaled.isDone()) {
                    written = write(writer, written);
                    TimeUnit.MILLISECONDS.sleep(20);
                }
                check(scaled.get(), "scaled");
                written = write(writer, written);
            }
            equal(2, controller.getCurrentSegments(world.scope, "stream").get()
                    .getSegments().size(), "segments now");
            check(!controller.startScale(stream, List.of(0L), Map.of(0.0, 0.5)).get(),
                    "a sealed segment is not scaled");
            writer.flush();
            found.addAll(World.take(reader, written));
            World.nothing(reader);
        }
        executor.shutdown();
        World.checkOrder(found, 0, written);
    }

    private static int write(EventStreamWriter<String> writer, int written) {
        for (int number = written; number < written + COUNT; number++) {
            writer.writeEvent(World.key(number), World.key(number) + " " + number);
        }
        return written + COUNT;
    }

    /** A sealed stream is read to its end, and takes nothing more; then it is deleted. */
    static void sealing(World world) throws Exception {
        world.createStream("stream", 2);
        world.write("stream", 0, COUNT);
        world.createGroup("group", "stream");
        check(world.streams.sealStream(world.scope, "stream"), "sealed");
        check(world.streams.sealStream(world.scope, "stream"), "sealed again");
        try (EventStreamReader<String> reader = world.reader("group", "reader")) {
            World.checkOrder(World.take(reader, COUNT), 0, COUNT);
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
            while (!reader.readNextEvent(500).isReadCompleted()) {
                check(System.nanoTime() < end, "the end is reported");
            }
        }
        world.groups.deleteReaderGroup("group");
        check(world.streams.deleteStream(world.scope, "stream"), "deleted");
        check(!world.streams.checkStreamExists(world.scope, "stream"), "absent");
        check(!world.streams.listStreams(world.scope).hasNext(), "nothing is left");
        check(world.streams.deleteScope(world.scope), "the scope is deleted");
        check(!world.streams.checkScopeExists(world.scope), "the scope is absent");
    }

    static void administration(World world) throws Exception {
        StreamConfiguration configuration = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(2)).tag("red").tag("blue").build();
        check(world.streams.createStream(world.scope, "stream", configuration), "new");
        check(!world.streams.createStream(world.scope, "stream", configuration), "once");
        world.createStream("other", 1);
        equal(Set.of("red", "blue"),
                Set.copyOf(world.streams.getStreamTags(world.scope, "stream")), "tags");
        check(world.streams.updateStream(world.scope, "stream", StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(2)).tag("green").build()), "updated");
        equal(List.of("stream"), names(world.streams.listStreams(world.scope, "green")), "tagged");
        equal(List.of(), names(world.streams.listStreams(world.scope, "red")), "no more tagged");
        equal(List.of("other", "stream"), names(world.streams.listStreams(world.scope)), "listed");
        StreamInfo info = world.streams.fetchStreamInfo(world.scope, "stream").get();
        check(!info.isSealed(), "open");
        equal(2, info.getTailStreamCut().asImpl().getPositions().size(), "segments");
        world.streams.listScopes().forEachRemaining(scope -> check(!scope.isEmpty(), "a name"));
        check(world.streams.deleteScopeRecursive(world.scope), "deleted with all streams");
        check(!world.streams.checkScopeExists(world.scope), "absent");
    }

    /** A store that has users refuses others at once. */
    static void wrongPassword(World world) {
        ClientConfig config =
                World.configuration(world.config.getControllerURI().toString(), "wrong");
        try (StreamManager manager = StreamManager.create(config)) {
            manager.createScope("refused");
            throw new AssertionError("a wrong password was taken");
        } catch (RuntimeException refused) {
            check(refused.toString().contains("UNAUTHENTICATED"), "not " + refused);
        }
        check(!world.streams.checkScopeExists("refused"), "nothing was done");
    }

    /** Without the internal ones. */
    private static List<String> names(Iterator<Stream> streams) {
        Set<String> found = new TreeSet<>();
        streams.forEachRemaining(stream -> {
            if (!stream.getStreamName().startsWith("_")) {
                found.add(stream.getStreamName());
            }
        });
        return new ArrayList<>(found);
    }
}
