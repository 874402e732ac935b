package segmentstore;

import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.WatchedBookKeeper;
import org.apache.bookkeeper.client.api.ListLedgersResult;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/**
 * One store of one Python process: its client, its open writers. Lives as long as its connection
 * for entries.
 */
final class Session {
    /**
     * Readings at a time: each has four parts in direct memory. Others of this session wait, those
     * of other sessions do not.
     */
    private static final int READINGS_MAX = 4;
    private static final long IDLE_SECONDS = 10;

    final int id;
    final Semaphore readings = new Semaphore(READINGS_MAX);
    private final AtomicInteger numbers = new AtomicInteger();
    private final Map<Integer, LedgerHandle> writers = new ConcurrentHashMap<>();
    private final Map<Integer, Listing> listings = new ConcurrentHashMap<>();
    /**
     * Bytes of entries that were handed to the client and are not acknowledged, each with more than
     * it has on the wire.
     */
    final AtomicLong unacknowledged = new AtomicLong();
    /** Of the room for entries that the client has. */
    final EntryRoom.Share room;
    private WatchedBookKeeper client;
    private volatile Bookies bookies;
    private boolean ended;
    volatile byte[] password = new byte[0];

    /** A walk over all ledgers, a page at a time. */
    record Listing(ListLedgersResult result, Iterator<Long> ids) {}

    /**
     * The first creation of a client asks ZooKeeper for the parent of all ledger ids, and waits for
     * it without a bound inside of `execute`. So no thread of a call does that: it would answer
     * late, and a gateway that answers late is taken to hang. One thread for all, as an outage
     * would keep any number.
     */
    private final ThreadPoolExecutor creating;

    Session(int id, EntryRoom.Share room) {
        this.id = id;
        this.room = room;
        creating = new ThreadPoolExecutor(
                1, 1, IDLE_SECONDS, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), task -> {
                    Thread thread = new Thread(task, "create-ledgers-" + id);
                    thread.setDaemon(true);
                    return thread;
                });
        creating.allowCoreThreadTimeOut(true);
    }

    /** Begins with a creation as soon as those before it have begun. */
    <T> CompletableFuture<T> create(Supplier<CompletableFuture<T>> begin) {
        return CompletableFuture.supplyAsync(begin, creating).thenCompose(Function.identity());
    }

    /**
     * Connects; waits for the metadata service as long as the client's own settings say, and so
     * many milliseconds for a bookie that admits the client.
     */
    void connect(ClientConfiguration settings, byte[] secret, long millis) throws Exception {
        Bookies[] way = new Bookies[1];
        Refusals refusals = WatchedEncryption.watch(settings);
        WatchedBookKeeper made = WatchedBookKeeper.make(
                settings,
                client -> way[0] =
                        new Bookies(client, unacknowledged::get, this::writes, refusals));
        try {
            Admission.check(made, refusals, millis);
        } catch (Throwable refused) {
            way[0].end();
            made.close();
            throw refused;
        }
        synchronized (this) {
            if (!ended && client == null) {
                client = made;
                bookies = way[0];
                password = secret;
                return;
            }
        }
        way[0].end();
        made.close();
    }

    /** Null before it is connected. */
    Bookies bookies() {
        return bookies;
    }

    synchronized WatchedBookKeeper client() throws org.apache.bookkeeper.client.BKException {
        if (ended || client == null) {
            throw new org.apache.bookkeeper.client.BKException.BKClientClosedException();
        }
        return client;
    }

    /** Whether a ledger that is being written has this bookie. */
    private boolean writes(BookieId bookie) {
        for (LedgerHandle writer : writers.values()) {
            if (writer.getLedgerMetadata().getAllEnsembles().lastEntry().getValue()
                    .contains(bookie)) {
                return true;
            }
        }
        return false;
    }

    int add(LedgerHandle writer) {
        int handle = numbers.incrementAndGet();
        writers.put(handle, writer);
        return handle;
    }

    LedgerHandle writer(int handle) {
        return writers.get(handle);
    }

    LedgerHandle remove(int handle) {
        return writers.remove(handle);
    }

    int add(ListLedgersResult result) {
        int number = numbers.incrementAndGet();
        listings.put(number, new Listing(result, result.toIterable().iterator()));
        return number;
    }

    Listing listing(int number) {
        return listings.get(number);
    }

    void drop(int number) throws Exception {
        Listing listing = listings.remove(number);
        if (listing != null) {
            listing.result().close();
        }
    }

    /** Ledgers of writers that are still open stay open: who needs their ends recovers them. */
    void end() {
        WatchedBookKeeper last;
        synchronized (this) {
            last = client;
            client = null;
            ended = true;
        }
        creating.shutdownNow();
        room.end();
        writers.clear();
        listings.clear();
        if (last != null) {
            bookies.end();
            try {
                last.close();
            } catch (Exception failure) {
                Gateway.LOG.warn("closing the client of session {}", id, failure);
            }
        }
    }
}
