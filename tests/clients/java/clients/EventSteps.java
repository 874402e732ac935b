package clients;

import static clients.World.check;
import static clients.World.equal;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.ByteArraySerializer;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Events written and read. */
final class EventSteps {
    private static final int COUNT = 10_000;
    private static final int SURVIVING = 20_000;
    private static final int LARGE = 9 << 20;

    private EventSteps() {}

    /** Two readers of a group share the segments. */
    static void events(World world) throws Exception {
        world.createStream("stream", 4);
        world.write("stream", 0, COUNT);
        world.createGroup("group", "stream");
        List<String> found = Collections.synchronizedList(new ArrayList<>());
        ExecutorService threads = Executors.newFixedThreadPool(2);
        try (EventStreamReader<String> one = world.reader("group", "one");
                EventStreamReader<String> two = world.reader("group", "two")) {
            List<Future<Integer>> counts = new ArrayList<>();
            for (EventStreamReader<String> reader : List.of(one, two)) {
                counts.add(threads.submit(() -> readAll(reader, found)));
            }
            for (Future<Integer> count : counts) {
                check(count.get() > 0, "each reader has read");
            }
        }
        threads.shutdown();
        World.checkOrder(found, 0, COUNT);
    }

    private static int readAll(EventStreamReader<String> reader, List<String> found) {
        int count = 0;
        while (found.size() < COUNT) {
            String event = reader.readNextEvent(200).getEvent();
            if (event != null) {
                found.add(event);
                count++;
            }
        }
        return count;
    }

    /** One larger than a frame, between two small ones. */
    static void largeEvent(World world) throws Exception {
        world.createStream("stream", 1);
        byte[] large = new byte[LARGE];
        new Random(1).nextBytes(large);
        List<byte[]> written = List.of(new byte[] {1}, large, new byte[] {2, 3});
        EventWriterConfig config = EventWriterConfig.builder().enableLargeEvents(true).build();
        try (EventStreamWriter<byte[]> writer =
                world.events.createEventWriter("stream", new ByteArraySerializer(), config)) {
            for (byte[] event : written) {
                writer.writeEvent("key", event).get();
            }
        }
        world.createGroup("group", "stream");
        try (EventStreamReader<byte[]> reader = world.events.createReader(
                "reader", "group", new ByteArraySerializer(), ReaderConfig.builder().build())) {
            for (byte[] event : written) {
                byte[] found = null;
                while (found == null) {
                    found = reader.readNextEvent(5_000).getEvent();
                }
                check(Arrays.equals(event, found), "an event of " + event.length + " bytes");
            }
        }
    }

    /** Whole segments, without a reader group. */
    static void batches(World world) {
        world.createStream("stream", 3);
        world.write("stream", 0, COUNT);
        List<String> found = new ArrayList<>();
        try (BatchClientFactory batches =
                BatchClientFactory.withScope(world.scope, world.config)) {
            List<SegmentRange> ranges = new ArrayList<>();
            Stream stream = Stream.of(world.scope, "stream");
            batches.getSegments(stream, StreamCut.UNBOUNDED, StreamCut.UNBOUNDED)
                    .getIterator().forEachRemaining(ranges::add);
            equal(3, ranges.size(), "segments");
            for (SegmentRange range : ranges) {
                try (SegmentIterator<String> iterator =
                        batches.readSegment(range, new UTF8StringSerializer())) {
                    iterator.forEachRemaining(found::add);
                }
            }
        }
        World.checkOrder(found, 0, COUNT);
    }

    /**
     * Written while the server is killed. Its progress is on the standard output, so that the test
     * knows when.
     */
    static void survival(World world) throws Exception {
        world.createStream("stream", 4);
        try (EventStreamWriter<String> writer = world.writer("stream")) {
            for (int number = 0; number < SURVIVING; number++) {
                var written =
                        writer.writeEvent(World.key(number), World.key(number) + " " + number);
                if (number % 100 == 0) {
                    System.out.println("written " + number);
                    // So that there is always something on its way, and never all.
                    written.get();
                }
            }
            writer.flush();
        }
        World.checkOrder(world.read("stream", SURVIVING), 0, SURVIVING);
    }
}
