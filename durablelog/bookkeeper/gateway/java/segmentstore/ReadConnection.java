package segmentstore;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;

/**
 * One reading of a range of entries: while one part of it goes into the socket, the next ones are
 * on their way from the bookies. How many entries a part has follows from their size, so that parts
 * have about PART_BYTES.
 */
final class ReadConnection {
    private static final int RECORD_BYTES = 16;
    private static final int PART_BYTES = 2 << 20;
    /**
     * How large the next entries are is not known: behind small ones, all that is asked for may be
     * of 1 MiB.
     */
    private static final int PART_ENTRIES_MAX = 8;
    /** Asked for and not written yet: the store that takes them has work to do with each part. */
    private static final int PARTS_AHEAD = 4;
    private static final int PART_ENTRIES_FIRST = 4;
    private static final long ANSWER_SECONDS = 20;

    private final SocketChannel channel;
    private final Session session;
    private final AtomicLong entriesHeld;
    private final ByteBuffer headers =
            ByteBuffer.allocateDirect((PART_ENTRIES_MAX + 1) * RECORD_BYTES);

    /** `entriesHeld` counts those that were asked for and are not written yet. */
    ReadConnection(SocketChannel channel, Session session, AtomicLong entriesHeld) {
        this.channel = channel;
        this.session = session;
        this.entriesHeld = entriesHeld;
    }

    void run(long ledger, long first, long last) throws IOException, InterruptedException {
        session.readings.acquire();
        try {
            ReadHandle reader = opened(ledger);
            try {
                stream(reader, first, last);
            } finally {
                reader.closeAsync();
            }
            end(Codes.OK);
        } catch (IOException | InterruptedException failure) {
            throw failure;
        } catch (Exception failure) {
            end(Codes.of(failure));
        } finally {
            session.readings.release();
        }
    }

    /** One that comes when nothing waits for it any more is closed: it watches its ledger. */
    private ReadHandle opened(long ledger) throws Exception {
        CompletableFuture<ReadHandle> opening = session.client().newOpenLedgerOp()
                .withLedgerId(ledger).withRecovery(false)
                .withDigestType(DigestType.CRC32C).withPassword(session.password).execute();
        try {
            return opening.get(ANSWER_SECONDS, TimeUnit.SECONDS);
        } catch (InterruptedException | TimeoutException late) {
            opening.thenAccept(ReadHandle::closeAsync);
            throw late;
        }
    }

    private void stream(ReadHandle reader, long first, long last) throws Exception {
        long next = first;
        long written = first;
        int count = PART_ENTRIES_FIRST;
        Deque<CompletableFuture<LedgerEntries>> ahead = new ArrayDeque<>();
        try {
            while (true) {
                // The first part says how large entries are; until it is here nothing more is asked
                // for.
                while (next <= last
                        && ahead.size() < (next == first + PART_ENTRIES_FIRST ? 1 : PARTS_AHEAD)) {
                    long upTo = Math.min(last, next + count - 1);
                    ahead.add(reader.readUnconfirmedAsync(next, upTo));
                    entriesHeld.addAndGet(upTo + 1 - next);
                    next = upTo + 1;
                }
                if (ahead.isEmpty()) {
                    return;
                }
                try (LedgerEntries part = ahead.peek().get(ANSWER_SECONDS, TimeUnit.SECONDS)) {
                    ahead.remove();
                    count = countFor(part, count);
                    int entries = write(part);
                    written += entries;
                    entriesHeld.addAndGet(-entries);
                }
            }
        } finally {
            entriesHeld.addAndGet(written - next);
            ahead.forEach(part -> part.thenAccept(LedgerEntries::close));
        }
    }

    /** At most twice as many as before: what comes may be larger than what came. */
    private static int countFor(LedgerEntries part, int before) {
        long bytes = 1;
        int entries = 0;
        for (LedgerEntry entry : part) {
            bytes += entry.getEntryBuffer().readableBytes();
            entries++;
        }
        long fitting = Math.max(1, PART_BYTES * (long) entries / bytes);
        return (int) Math.min(Math.min(fitting, before * 2L), PART_ENTRIES_MAX);
    }

    /** How many they were. */
    private int write(LedgerEntries part) throws IOException {
        ByteBuffer[] pieces = new ByteBuffer[2 * PART_ENTRIES_MAX];
        int used = 0;
        headers.clear();
        for (LedgerEntry entry : part) {
            ByteBuffer bytes = entry.getEntryNioBuffer();
            int start = headers.position();
            headers.putInt(Codes.OK).putInt(bytes.remaining()).putLong(entry.getEntryId());
            pieces[used++] = headers.duplicate().position(start).limit(headers.position());
            pieces[used++] = bytes;
        }
        while (pieces[used - 1].hasRemaining() || pieces[used - 2].hasRemaining()) {
            channel.write(pieces, 0, used);
        }
        return used / 2;
    }

    private void end(int code) throws IOException {
        headers.clear();
        headers.putInt(code).putInt(0).putLong(-1).flip();
        while (headers.hasRemaining()) {
            channel.write(headers);
        }
    }
}
