package clients;

import static clients.World.check;
import static clients.World.equal;

import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.Transaction.Status;
import io.pravega.client.stream.TransactionInfo;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.stream.Collectors;

/** Transactions. */
final class TransactionSteps {
    private static final long LEASE_MS = 10_000;
    private static final long WAITED_MAX = 120;

    private TransactionSteps() {}

    private static TransactionalEventStreamWriter<String> writer(World world) {
        return world.events.createTransactionalEventWriter(
                "stream", new UTF8StringSerializer(),
                EventWriterConfig.builder().transactionTimeoutTime(LEASE_MS).build());
    }

    /** Committed in another order than they were begun in; one resumed, one aborted, one empty. */
    static void transactions(World world) throws Exception {
        world.createStream("stream", 3);
        world.createGroup("group", "stream");
        try (TransactionalEventStreamWriter<String> writer = writer(world);
                EventStreamReader<String> reader = world.reader("group", "reader")) {
            Transaction<String> later = writer.beginTxn();
            Transaction<String> first = writer.beginTxn();
            Transaction<String> aborted = writer.beginTxn();
            Transaction<String> empty = writer.beginTxn();
            for (int number = 0; number < 100; number++) {
                write(first, number);
                write(aborted, number + 200);
            }
            for (int number = 100; number < 150; number++) {
                write(later, number);
            }
            later.flush();
            Transaction<String> resumed = writer.getTxn(later.getTxnId());
            for (int number = 150; number < 200; number++) {
                write(resumed, number);
            }
            equal(Status.OPEN, first.checkStatus(), "state of a transaction");
            World.nothing(reader);
            first.commit();
            resumed.commit();
            aborted.abort();
            empty.commit();
            World.checkOrder(World.take(reader, 200), 0, 200);
            World.nothing(reader);
            await(first, Status.COMMITTED);
            await(later, Status.COMMITTED);
            await(empty, Status.COMMITTED);
            await(aborted, Status.ABORTED);
            refused(writer.getTxn(aborted.getTxnId()));
        }
    }

    private static void write(Transaction<String> transaction, int number)
            throws TxnFailedException {
        transaction.writeEvent(World.key(number), World.key(number) + " " + number);
    }

    /** The ended ones of a stream can be listed. */
    static void completedTransactions(World world) throws Exception {
        world.createStream("stream", 2);
        try (TransactionalEventStreamWriter<String> writer = writer(world)) {
            Transaction<String> committed = writer.beginTxn();
            Transaction<String> aborted = writer.beginTxn();
            writer.beginTxn();
            committed.commit();
            aborted.abort();
            await(committed, Status.COMMITTED);
            await(aborted, Status.ABORTED);
            Set<UUID> listed = world.streams
                    .listCompletedTransactions(Stream.of(world.scope, "stream")).stream()
                    .map(TransactionInfo::getTransactionId).collect(Collectors.toSet());
            equal(Set.of(committed.getTxnId(), aborted.getTxnId()), listed, "completed ones");
        }
    }

    /** Its writer is closed, and no other client extends its lease. */
    static void lease(World world) throws Exception {
        world.createStream("stream", 2);
        UUID left;
        try (TransactionalEventStreamWriter<String> writer = writer(world)) {
            Transaction<String> transaction = writer.beginTxn();
            transaction.writeEvent("key", "left");
            transaction.flush();
            left = transaction.getTxnId();
        }
        ScheduledExecutorService executor = Executors.newSingleThreadScheduledExecutor();
        try (Controller controller = new ControllerImpl(
                        ControllerImplConfig.builder().clientConfig(world.config).build(),
                        executor);
                TransactionalEventStreamWriter<String> writer = writer(world)) {
            Stream stream = Stream.of(world.scope, "stream");
            Transaction<String> kept = writer.beginTxn();
            write(kept, 0);
            // A writer would extend the lease of an open transaction that it is asked for.
            for (int waited = 0;
                    controller.checkTransactionStatus(stream, left).get() != Status.ABORTED;
                    waited++) {
                check(waited < WAITED_MAX, "the lease ends in time");
                Thread.sleep(500);
            }
            equal(Status.ABORTED, writer.getTxn(left).checkStatus(), "state after the lease");
            refused(writer.getTxn(left));
            // Its lease was extended meanwhile.
            kept.commit();
        }
        executor.shutdown();
        World.checkOrder(world.read("stream", 1), 0, 1);
    }

    private static void await(Transaction<String> transaction, Status wanted)
            throws InterruptedException {
        for (int waited = 0; transaction.checkStatus() != wanted; waited++) {
            check(waited < WAITED_MAX, wanted + " in time");
            Thread.sleep(500);
        }
    }

    private static void refused(Transaction<String> transaction) {
        try {
            transaction.commit();
        } catch (TxnFailedException refusal) {
            return;
        }
        throw new AssertionError("an aborted transaction was committed");
    }
}
