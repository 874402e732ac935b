package clients;

import static clients.World.check;
import static clients.World.equal;

import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.stream.EventPointer;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReaderGroupConfig.StreamDataRetention;
import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;

/** Reader groups beyond plain reading. */
final class GroupSteps {
    private static final int COUNT = 300;

    private GroupSteps() {}

    /** A group between two cuts; one whose reader is lost, and has another take its place. */
    static void streamCuts(World world) throws Exception {
        world.createStream("stream", 2);
        world.write("stream", 0, COUNT);
        StreamCut from = tail(world);
        world.write("stream", COUNT, 2 * COUNT);
        StreamCut to = tail(world);
        world.write("stream", 2 * COUNT, 3 * COUNT);
        world.groups.createReaderGroup("between", ReaderGroupConfig.builder()
                .stream(Stream.of(world.scope, "stream"), from, to).build());
        try (EventStreamReader<String> reader = world.reader("between", "reader")) {
            World.checkOrder(World.take(reader, COUNT), COUNT, 2 * COUNT);
            World.nothing(reader);
        }
        world.createGroup("group", "stream");
        try (ReaderGroup group = world.groups.getReaderGroup("group")) {
            List<String> found = new ArrayList<>();
            Position last = readSome(world, group, found);
            equal(Set.of("lost"), group.getOnlineReaders(), "online readers");
            group.readerOffline("lost", last);
            try (EventStreamReader<String> reader = world.reader("group", "next")) {
                found.addAll(World.take(reader, 3 * COUNT - found.size()));
                // They are counted from the last checkpoint, which readers make every second.
                for (int waited = 0; group.getMetrics().unreadBytes() > 0; waited++) {
                    check(waited < 60, "all bytes are read");
                    World.nothing(reader);
                }
            }
            World.checkOrder(found, 0, 3 * COUNT);
        }
    }

    private static StreamCut tail(World world) throws Exception {
        return world.streams.fetchStreamInfo(world.scope, "stream").get().getTailStreamCut();
    }

    /** By a reader that is not closed; where it was. */
    private static Position readSome(World world, ReaderGroup group, List<String> found)
            throws Exception {
        ScheduledExecutorService executor = Executors.newSingleThreadScheduledExecutor();
        EventStreamReader<String> reader = world.reader("group", "lost");
        CompletableFuture<Map<Stream, StreamCut>> cuts = null;
        Position last = null;
        EventPointer first = null;
        while (cuts == null || !cuts.isDone()) {
            EventRead<String> read = reader.readNextEvent(100);
            if (read.getEvent() != null) {
                found.add(read.getEvent());
                last = read.getPosition();
                first = first == null ? read.getEventPointer() : first;
            }
            if (cuts == null && found.size() == COUNT) {
                cuts = group.generateStreamCuts(executor);
            }
        }
        equal(2, cuts.get().get(Stream.of(world.scope, "stream")).asImpl().getPositions().size(),
                "segments of a cut");
        equal(found.get(0), reader.fetchEvent(first), "the first event again");
        equal(found.get(0), world.streams.fetchEvent(first, new UTF8StringSerializer()).get(),
                "the first event without a reader");
        executor.shutdown();
        return last;
    }

    /** Groups for which a stream keeps its events. */
    static void subscribers(World world) throws Exception {
        check(world.streams.createStream(world.scope, "stream", StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(2))
                .retentionPolicy(RetentionPolicy.bySizeBytes(1_000, 5_000)).build()), "new");
        world.write("stream", 0, COUNT);
        Stream stream = Stream.of(world.scope, "stream");
        world.groups.createReaderGroup("automatic", ReaderGroupConfig.builder().stream(stream)
                .automaticCheckpointIntervalMillis(500)
                .retentionType(StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT).build());
        world.groups.createReaderGroup("manual", ReaderGroupConfig.builder().stream(stream)
                .retentionType(StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT).build());
        ScheduledExecutorService executor = Executors.newScheduledThreadPool(2);
        try (Controller controller = new ControllerImpl(
                ControllerImplConfig.builder().clientConfig(world.config).build(), executor)) {
            String automatic = world.scope + "/automatic";
            String manual = world.scope + "/manual";
            equal(Set.of(automatic, manual), subscribers(controller, stream), "subscribers");
            try (EventStreamReader<String> reader = world.reader("automatic", "reader")) {
                World.take(reader, COUNT);
                World.nothing(reader);
            }
            try (ReaderGroup group = world.groups.getReaderGroup("manual")) {
                group.updateRetentionStreamCut(Map.of(stream, tail(world)));
                group.resetReaderGroup(ReaderGroupConfig.builder().stream(stream)
                        .retentionType(StreamDataRetention.NONE).build());
            }
            equal(Set.of(automatic), subscribers(controller, stream), "subscribers left");
            world.groups.deleteReaderGroup("automatic");
            equal(Set.of(), subscribers(controller, stream), "no subscriber");
            equal(RetentionPolicy.bySizeBytes(1_000, 5_000), controller
                    .getStreamConfiguration(world.scope, "stream").get().getRetentionPolicy(),
                    "retention policy");
        }
        executor.shutdown();
    }

    private static Set<String> subscribers(Controller controller, Stream stream)
            throws Exception {
        return Set.copyOf(controller.listSubscribers(
                stream.getScope(), stream.getStreamName()).get());
    }

    /** A stream of a name that was deleted has none of the events before it. */
    static void recreation(World world) throws Exception {
        for (int round = 0; round < 2; round++) {
            world.createStream("a.stream-1", 2);
            world.write("a.stream-1", 0, COUNT);
            String group = "group" + round;
            world.createGroup(group, "a.stream-1");
            try (EventStreamReader<String> reader = world.reader(group, "reader")) {
                World.checkOrder(World.take(reader, COUNT), 0, COUNT);
                World.nothing(reader);
            }
            world.groups.deleteReaderGroup(group);
            check(world.streams.sealStream(world.scope, "a.stream-1"), "sealed");
            check(world.streams.deleteStream(world.scope, "a.stream-1"), "deleted");
            check(!world.streams.deleteStream(world.scope, "a.stream-1"), "once");
        }
    }
}
