package segmentstore;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.PooledByteBufAllocator;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.AsyncCallback.AddCallback;
import org.apache.bookkeeper.client.LedgerHandle;

/**
 * Entries in, acknowledgements out. The connection's own thread reads; another writes what the
 * callbacks have put together since it wrote last, so acknowledgements batch by themselves under
 * load, and those that continue one another become one. The last of what is in flight does not wait
 * for that thread: its callback writes itself.
 *
 * An entry counts against the window from before it is handed to the client until its
 * acknowledgement is in the socket: a caller that does not read is not read from.
 */
final class AddConnection implements AddCallback {
    private static final int HEADER_BYTES = 12;
    private static final int ACK_BYTES = 24;
    private static final int ACK_COUNT_AT = 8;
    private static final int ENTRY_BYTES_MAX = 5 << 20;
    private static final int INPUT_BYTES = 128 << 10;
    static final int WINDOW_BYTES = 64 << 20;
    /** What an entry costs besides its bytes, about: small ones must not fill the heap. */
    static final int ENTRY_OVERHEAD = 1 << 10;
    /** So often a message is sent, whatever there is to say. */
    private static final long BEAT_MILLIS = 1000;

    private final SocketChannel channel;
    private final DataServer server;
    private final Session session;
    private final Semaphore window = new Semaphore(WINDOW_BYTES);
    private final ByteBuffer input = ByteBuffer.allocateDirect(INPUT_BYTES).flip();
    private final Object lock = new Object();
    /** Both guarded by `lock`; large enough for all that fit the window, and a beat. */
    private ByteBuffer acks =
            ByteBuffer.allocateDirect((WINDOW_BYTES / ENTRY_OVERHEAD + 2) * ACK_BYTES);
    private int acked;
    /** Guarded by `lock`: the newest acknowledgement in `acks`; meaningful if there is one. */
    private int lastAt;
    private int lastHandle;
    private int lastSequence;
    private int lastCode;
    private int lastCount;
    /**
     * Guarded by `lock`: the writing thread has acknowledgements that are not in the socket yet.
     */
    private boolean writing;
    private boolean ended;
    private final AtomicInteger inFlight = new AtomicInteger();

    /** What the client gives back with the result. */
    private record Add(int handle, int sequence, int cost) {}

    AddConnection(SocketChannel channel, DataServer server, Session session) {
        this.channel = channel;
        this.server = server;
        this.session = session;
    }

    void run() throws IOException {
        Thread writing = new Thread(this::writeAcks, "acks-" + session.id);
        writing.setDaemon(true);
        writing.start();
        try {
            while (readEntry()) {
                // One after another.
            }
        } catch (InterruptedException stopped) {
            Gateway.LOG.debug("stopped", stopped);
        } finally {
            synchronized (lock) {
                ended = true;
                lock.notify();
            }
        }
    }

    private boolean readEntry() throws IOException, InterruptedException {
        while (input.remaining() < HEADER_BYTES) {
            input.compact();
            int got = channel.read(input);
            input.flip();
            if (got < 0) {
                return false;
            }
        }
        int length = input.getInt();
        int handle = input.getInt();
        int sequence = input.getInt();
        if (length < 0 || length > ENTRY_BYTES_MAX) {
            throw new IOException("an entry of " + length + " bytes");
        }
        int cost = length + ENTRY_OVERHEAD;
        window.acquire(cost);
        session.room.take(cost);
        server.entriesHeld.incrementAndGet();
        ByteBuf entry = PooledByteBufAllocator.DEFAULT.directBuffer(Math.max(length, 1));
        try {
            fill(entry, length);
        } catch (IOException broken) {
            entry.release();
            throw broken;
        }
        LedgerHandle writer = session.writer(handle);
        Add add = new Add(handle, sequence, cost);
        inFlight.incrementAndGet();
        session.unacknowledged.addAndGet(cost);
        if (writer == null) {
            entry.release();
            addComplete(Codes.LEDGER_CLOSED, null, -1, add);
        } else {
            // The client releases the entry, also of a ledger that is closed.
            writer.asyncAddEntry(entry, this, add);
        }
        return true;
    }

    private void fill(ByteBuf entry, int length) throws IOException {
        int there = Math.min(length, input.remaining());
        if (there > 0) {
            int limit = input.limit();
            input.limit(input.position() + there);
            entry.writeBytes(input);
            input.limit(limit);
        }
        // What is not here yet goes straight to where it is sent from.
        while (entry.writerIndex() < length) {
            if (entry.writeBytes(channel, length - entry.writerIndex()) < 0) {
                throw new EOFException();
            }
        }
    }

    @Override
    public void addComplete(int code, LedgerHandle writer, long entry, Object context) {
        Add add = (Add) context;
        server.entriesHeld.decrementAndGet();
        session.unacknowledged.addAndGet(-add.cost);
        session.room.giveBack(add.cost);
        synchronized (lock) {
            boolean first = acks.position() == 0;
            acknowledge(add, code, code == Codes.OK ? entry : -1);
            acked += add.cost;
            if (inFlight.decrementAndGet() == 0 && !writing) {
                writeAtOnce();
            } else if (first) {
                lock.notify();
            }
        }
    }

    /**
     * Holds `lock`. An entry's number is its sequence, so of entries that are OK in a row only the
     * first number is sent.
     */
    private void acknowledge(Add add, int code, long entry) {
        boolean follows = acks.position() > 0
                && add.handle == lastHandle && add.sequence == lastSequence + 1
                && code == lastCode && (code != Codes.OK || entry == add.sequence);
        if (follows) {
            acks.putInt(lastAt + ACK_COUNT_AT, ++lastCount);
        } else {
            lastAt = acks.position();
            lastHandle = add.handle;
            lastCode = code;
            lastCount = 1;
            acks.putInt(add.handle).putInt(add.sequence).putInt(1).putInt(code).putLong(entry);
        }
        lastSequence = add.sequence;
    }

    /**
     * Holds `lock`. An acknowledgement for no writer: that we are alive, and how the bookies are.
     */
    private void beat() {
        Bookies bookies = session.bookies();
        acks.putInt(0).putInt(bookies == null ? 0 : bookies.changes())
                .putInt(bookies == null ? 0 : bookies.inTrouble()).putInt(Codes.OK)
                .putLong(PooledByteBufAllocator.DEFAULT.metric().usedDirectMemory());
        // What comes next continues nothing that is in this buffer.
        lastHandle = 0;
    }

    private static long millisSince(long nanos) {
        return (System.nanoTime() - nanos) / 1_000_000;
    }

    /**
     * Holds `lock`. What fails here ends the connection: what is left of an acknowledgement that
     * was cut is of no use.
     */
    private void writeAtOnce() {
        acks.flip();
        try {
            while (acks.hasRemaining()) {
                channel.write(acks);
            }
            window.release(acked);
            acked = 0;
        } catch (IOException broken) {
            close(broken);
            lock.notify();
        }
        acks.compact();
    }

    /** The thread that reads ends with it, and everything else with that. */
    private void close(Exception broken) {
        Gateway.LOG.debug("the connection takes no acknowledgements any more", broken);
        try {
            channel.close();
        } catch (IOException already) {
            Gateway.LOG.debug("closing", already);
        }
        // The reading side may wait for room in the window that never comes.
        window.release(WINDOW_BYTES);
    }

    private void writeAcks() {
        ByteBuffer full = ByteBuffer.allocateDirect(acks.capacity());
        long beaten = System.nanoTime();
        try {
            while (true) {
                int released;
                synchronized (lock) {
                    while (acks.position() == 0 && millisSince(beaten) < BEAT_MILLIS) {
                        if (ended) {
                            return;
                        }
                        lock.wait(Math.max(1, BEAT_MILLIS - millisSince(beaten)));
                    }
                    if (millisSince(beaten) >= BEAT_MILLIS) {
                        beaten = System.nanoTime();
                        beat();
                    }
                    ByteBuffer empty = full;
                    full = acks;
                    acks = empty;
                    released = acked;
                    acked = 0;
                    writing = true;
                }
                full.flip();
                while (full.hasRemaining()) {
                    channel.write(full);
                }
                full.clear();
                window.release(released);
                synchronized (lock) {
                    writing = false;
                }
            }
        } catch (IOException | InterruptedException broken) {
            close(broken);
        }
    }
}
