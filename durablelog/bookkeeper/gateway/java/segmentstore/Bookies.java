package segmentstore;

import io.netty.buffer.ByteBuf;
import io.netty.util.ReferenceCounted;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;
import java.util.function.Predicate;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.WatchedBookKeeper;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.BatchedReadEntryCallback;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.ForceLedgerCallback;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.GetBookieInfoCallback;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.ReadEntryCallback;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.ReadLacCallback;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.WriteCallback;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.WriteLacCallback;
import org.apache.bookkeeper.proto.PerChannelBookieClientPool;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;
import org.apache.bookkeeper.util.ByteBufList;

/**
 * The way to the bookies, and what each of them owes: entries that it was sent and has not
 * answered.
 *
 * BookKeeper's client keeps what it sends to a bookie until that has taken it. An entry is
 * acknowledged by the ack quorum, so what is kept for a bookie that hangs, or is slower than the
 * others, grows without bound. Hence:
 *
 * - no bookie owes more than all that is not acknowledged yet, which the window bounds, and LAG
 *   besides. One that would is *behind*: further entries fail for it at once, as for a bookie that
 *   is down, until it owes half of LAG. The others are ahead of it by what it owes, so their
 *   ledgers go on without it;
 * - an answer that did not come in the client's time (addEntryTimeoutSec) means that it hangs: the
 *   connection to it is dropped, which frees what is kept. The next entry connects anew;
 * - it is *in trouble* until it has answered an entry again. So is a bookie that is down, which is
 *   given every entry;
 * - left out of all ledgers it is given none, and could never show that it is well. So its trouble
 *   passes a while after the last failure, and the next ledger may have it. One that still hangs
 *   has left the list of bookies by then;
 * - nor is it given any while nothing is written to the ledgers that have it. Then its trouble
 *   passes as well, if the metadata service has it among those that take entries. One that does not
 *   admit the client is among them all the same, so its trouble stays.
 */
final class Bookies implements BookieClient {
    /** Of what is acknowledged, a bookie may owe so much; all sessions of this process share it. */
    private static final long LAG_BYTES = Long.getLong("segmentstore.gateway.lag.bytes", 32L << 20);
    private static final long LAG_BYTES_MIN = Math.min(LAG_BYTES, 4L << 20);
    private static final long PASSES_NANOS =
            TimeUnit.MILLISECONDS.toNanos(
                    Long.getLong("segmentstore.gateway.trouble.millis", 60_000));
    private static final AtomicInteger SESSIONS = new AtomicInteger();

    private final WatchedBookKeeper client;
    private final BookieClient direct;
    private final LongSupplier unacknowledged;
    private final Predicate<BookieId> written;
    private final Refusals refusals;
    private final Map<BookieId, Bookie> bookies = new ConcurrentHashMap<>();
    private final AtomicInteger changes = new AtomicInteger();
    private final AtomicBoolean asking = new AtomicBoolean();
    /**
     * Dropping a connection calls back for all that was on it: not on a thread of the client's. Nor
     * what may wait for a name server.
     */
    private final ExecutorService dropping = Executors.newSingleThreadExecutor(task -> {
        Thread thread = new Thread(task, "drop-bookies");
        thread.setDaemon(true);
        return thread;
    });

    /**
     * `unacknowledged` gives the bytes of entries that are on their way, each with more than it has
     * on the wire; `written` whether a ledger that is being written has a bookie; `refusals` why
     * one does not admit the client.
     */
    Bookies(
            WatchedBookKeeper client, LongSupplier unacknowledged, Predicate<BookieId> written,
            Refusals refusals) {
        this.client = client;
        this.direct = client.direct();
        this.unacknowledged = unacknowledged;
        this.written = written;
        this.refusals = refusals;
        SESSIONS.incrementAndGet();
    }

    /** Changes whenever a bookie is in trouble, or out of it. */
    int changes() {
        return changes.get();
    }

    int inTrouble() {
        int count = 0;
        for (Bookie bookie : bookies.values()) {
            bookie.pass();
            count += bookie.troubled ? 1 : 0;
        }
        return count;
    }

    /** New ledgers do without those in trouble, if there are enough others. */
    void avoidTroubled() {
        bookies.forEach((id, bookie) -> {
            bookie.pass();
            if (bookie.troubled) {
                client.avoid(id);
            }
        });
    }

    /**
     * A line each: id, bytes owed, entries it did not get since the trouble began, its milliseconds
     * (-1: none), and, if it does not admit the client, why.
     */
    String text() {
        StringBuilder lines = new StringBuilder();
        bookies.forEach((id, bookie) -> lines.append(lines.isEmpty() ? "" : "\n")
                .append(id).append(' ').append(bookie.owed.get()).append(' ')
                .append(bookie.missed.get()).append(' ')
                .append(bookie.troubledMillis()).append(bookie.refusal()));
        return lines.toString();
    }

    /**
     * Passes the trouble of those that the metadata service has. One question at a time.
     *
     * Whether a bookie refuses the client is asked by its address, which may need a name server:
     * not on a thread of the client's, nor on one that acknowledges.
     */
    private void askForRegistered() {
        if (!asking.compareAndSet(false, true)) {
            return;
        }
        try {
            client.registered().whenCompleteAsync((there, failure) -> {
                asking.set(false);
                if (failure == null) {
                    bookies.forEach((id, bookie) -> bookie.passIf(there.contains(id)));
                }
            }, dropping);
        } catch (RuntimeException ended) {
            asking.set(false);
            Gateway.LOG.debug("the session has ended", ended);
        }
    }

    void end() {
        SESSIONS.decrementAndGet();
        dropping.shutdown();
    }

    private static long lag() {
        return Math.max(LAG_BYTES_MIN, LAG_BYTES / Math.max(1, SESSIONS.get()));
    }

    private static int size(ReferenceCounted entry) {
        if (entry instanceof ByteBufList parts) {
            return parts.readableBytes();
        }
        return entry instanceof ByteBuf whole ? whole.readableBytes() : 0;
    }

    /**
     * What one bookie owes. It comes into trouble and out of it under its monitor; reading needs
     * none.
     */
    private final class Bookie {
        private final BookieId id;
        private final AtomicLong owed = new AtomicLong();
        private final AtomicLong missed = new AtomicLong();
        private volatile boolean behind;
        private volatile boolean troubled;
        private volatile long since;
        private volatile long failed;
        private volatile int code;
        private boolean dropped;

        Bookie(BookieId id) {
            this.id = id;
        }

        /** Whether it is given an entry of so many bytes; it owes them then. */
        boolean takes(int bytes) {
            long lag = behind ? lag() / 2 : lag();
            if (owed.addAndGet(bytes) <= unacknowledged.getAsLong() + lag) {
                behind = false;
                return true;
            }
            owed.addAndGet(-bytes);
            missed.incrementAndGet();
            failed = System.nanoTime();
            behind = true;
            trouble();
            return false;
        }

        void answered(int code, int bytes) {
            owed.addAndGet(-bytes);
            this.code = code;
            if (code == BKException.Code.OK) {
                if (troubled && !behind) {
                    recover("is well again");
                }
                return;
            }
            missed.incrementAndGet();
            failed = System.nanoTime();
            if (code == BKException.Code.TimeoutException) {
                trouble();
                drop();
            } else if (code == BKException.Code.BookieHandleNotAvailableException
                    || code == BKException.Code.SecurityException) {
                trouble();
            }
        }

        private synchronized void trouble() {
            if (!troubled) {
                troubled = true;
                since = System.nanoTime();
                changes.incrementAndGet();
                Gateway.LOG.warn("bookie {} is in trouble: it owes {} bytes{}",
                        id, owed.get(), behind ? ", and is behind" : "");
            }
        }

        /**
         * Ends its trouble if it is quiet and no ledger that is being written has it; begins to
         * ask for it if one has.
         */
        void pass() {
            if (!isQuiet()) {
                return;
            }
            if (!written.test(id)) {
                behind = false;
                recover("has no part in any ledger any more");
            } else {
                askForRegistered();
            }
        }

        void passIf(boolean registered) {
            if (registered && isQuiet() && refusal().isEmpty()) {
                behind = false;
                recover("takes entries again, and was given none");
            }
        }

        /** In trouble, and it was not given an entry for a while. */
        private boolean isQuiet() {
            return troubled && owed.get() == 0 && System.nanoTime() - failed >= PASSES_NANOS;
        }

        private synchronized void recover(String how) {
            if (troubled) {
                Gateway.LOG.warn("bookie {} {}: it did not get {} entries", id, how, missed.get());
                troubled = false;
                missed.set(0);
                changes.incrementAndGet();
            }
        }

        /** What the client keeps for it goes with the connection; each entry on it fails. */
        private synchronized void drop() {
            if (dropped) {
                return;
            }
            dropped = true;
            try {
                dropping.execute(() -> {
                    synchronized (this) {
                        dropped = false;
                    }
                    PerChannelBookieClientPool channels = client.direct().lookupClient(id);
                    if (channels != null) {
                        Gateway.LOG.warn(
                                "bookie {} does not answer: its connection is dropped", id);
                        channels.disconnect(false);
                    }
                });
            } catch (RejectedExecutionException ended) {
                Gateway.LOG.debug("the session has ended", ended);
            }
        }

        String refusal() {
            String words = troubled ? refusals.words(client, id, code) : null;
            return words == null ? "" : " " + words;
        }

        long troubledMillis() {
            return troubled ? (System.nanoTime() - since) / 1_000_000 : -1;
        }
    }

    @Override
    public void addEntry(
            BookieId id, long ledger, byte[] key, long entry, ReferenceCounted content,
            WriteCallback callback, Object context, int options, boolean failFast,
            EnumSet<WriteFlag> flags) {
        Bookie bookie = bookies.computeIfAbsent(id, Bookie::new);
        int bytes = size(content);
        if (!bookie.takes(bytes)) {
            // Not from here: the adding thread counts what is under way behind this call.
            client.getMainWorkerPool().executeOrdered(ledger, () -> callback.writeComplete(
                    BKException.Code.BookieHandleNotAvailableException, ledger, entry, id,
                    context));
            return;
        }
        WriteCallback counted = (code, ofLedger, ofEntry, from, ctx) -> {
            bookie.answered(code, bytes);
            callback.writeComplete(code, ofLedger, ofEntry, from, ctx);
        };
        direct.addEntry(
                id, ledger, key, entry, content, counted, context, options, failFast, flags);
    }

    // --- the rest is the client's ----------------------------------------------------------------

    @Override
    public List<BookieId> getFaultyBookies() {
        return direct.getFaultyBookies();
    }

    @Override
    public boolean isWritable(BookieId id, long ledger) {
        return direct.isWritable(id, ledger);
    }

    @Override
    public long getNumPendingRequests(BookieId id, long ledger) {
        return direct.getNumPendingRequests(id, ledger);
    }

    @Override
    public void forceLedger(
            BookieId id, long ledger, ForceLedgerCallback callback, Object context) {
        direct.forceLedger(id, ledger, callback, context);
    }

    @Override
    public void readLac(BookieId id, long ledger, ReadLacCallback callback, Object context) {
        direct.readLac(id, ledger, callback, context);
    }

    @Override
    public void writeLac(
            BookieId id, long ledger, byte[] key, long confirmed, ByteBufList content,
            WriteLacCallback callback, Object context) {
        direct.writeLac(id, ledger, key, confirmed, content, callback, context);
    }

    @Override
    public void readEntry(
            BookieId id, long ledger, long entry, ReadEntryCallback callback, Object context,
            int flags, byte[] key, boolean failFast) {
        direct.readEntry(id, ledger, entry, callback, context, flags, key, failFast);
    }

    @Override
    public void batchReadEntries(
            BookieId id, long ledger, long first, int count, long bytes,
            BatchedReadEntryCallback callback, Object context, int flags, byte[] key,
            boolean failFast) {
        direct.batchReadEntries(
                id, ledger, first, count, bytes, callback, context, flags, key, failFast);
    }

    @Override
    public void readEntryWaitForLACUpdate(
            BookieId id, long ledger, long entry, long confirmed, long millis, boolean piggyBack,
            ReadEntryCallback callback, Object context) {
        direct.readEntryWaitForLACUpdate(
                id, ledger, entry, confirmed, millis, piggyBack, callback, context);
    }

    @Override
    public void getBookieInfo(
            BookieId id, long requested, GetBookieInfoCallback callback, Object context) {
        direct.getBookieInfo(id, requested, callback, context);
    }

    @Override
    public CompletableFuture<AvailabilityOfEntriesOfLedger> getListOfEntriesOfLedger(
            BookieId id, long ledger) {
        return direct.getListOfEntriesOfLedger(id, ledger);
    }

    @Override
    public boolean isClosed() {
        return direct.isClosed();
    }

    @Override
    public void close() {
        direct.close();
    }
}
