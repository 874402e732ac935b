package clients;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Steps of Pravega's Java client, each in a scope of its own and several at a time:
 * `ClientProgram URI STEP...`. Writes "passed STEP" for each that did, and "failed STEP" with
 * the reason. Ends with 1 if any failed.
 */
final class ClientProgram {
    private static final int AT_A_TIME = 5;
    private static final Map<String, Step> STEPS = new LinkedHashMap<>();

    static {
        // The longest waits first.
        STEPS.put("lease", TransactionSteps::lease);
        STEPS.put("sealing", StreamSteps::sealing);
        STEPS.put("scaling", StreamSteps::scaling);
        STEPS.put("checkpoint", StreamSteps::checkpoint);
        STEPS.put("events", EventSteps::events);
        STEPS.put("streamCuts", GroupSteps::streamCuts);
        STEPS.put("subscribers", GroupSteps::subscribers);
        STEPS.put("recreation", GroupSteps::recreation);
        STEPS.put("largeEvent", EventSteps::largeEvent);
        STEPS.put("batches", EventSteps::batches);
        STEPS.put("transactions", TransactionSteps::transactions);
        STEPS.put("completedTransactions", TransactionSteps::completedTransactions);
        STEPS.put("byteStream", SegmentSteps::byteStream);
        STEPS.put("revisions", SegmentSteps::revisions);
        STEPS.put("synchronizer", SegmentSteps::synchronizer);
        STEPS.put("table", TableSteps::table);
        STEPS.put("tablePages", TableSteps::pages);
        STEPS.put("administration", StreamSteps::administration);
        STEPS.put("wrongPassword", StreamSteps::wrongPassword);
        STEPS.put("survival", EventSteps::survival);
    }

    private ClientProgram() {}

    /** What a step does; it throws if the store does not do right. */
    interface Step {
        void run(World world) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService executor = Executors.newFixedThreadPool(AT_A_TIME);
        List<String> names = List.of(arguments).subList(1, arguments.length);
        List<Future<Boolean>> outcomes = new ArrayList<>();
        for (String name : names) {
            outcomes.add(executor.submit(() -> passes(arguments[0], name)));
        }
        boolean failed = false;
        for (Future<Boolean> outcome : outcomes) {
            failed |= !outcome.get();
        }
        System.out.flush();
        // Threads of the client may still wait for what does not come.
        Runtime.getRuntime().halt(failed ? 1 : 0);
    }

    private static boolean passes(String uri, String name) {
        long begun = System.nanoTime();
        try (World world = new World(uri, name)) {
            STEPS.get(name).run(world);
        } catch (Throwable error) {
            say("failed " + name, error);
            return false;
        }
        say("passed " + name + " in " + (System.nanoTime() - begun) / 1_000_000 + " ms", null);
        return true;
    }

    private static synchronized void say(String line, Throwable error) {
        System.out.println(line);
        if (error != null) {
            error.printStackTrace(System.out);
        }
    }
}
