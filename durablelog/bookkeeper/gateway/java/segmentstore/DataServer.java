package segmentstore;

import io.netty.util.internal.PlatformDependent;
import java.io.EOFException;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;

/**
 * The Unix socket for entries: says hello, checks the token, hands over to a connection of one of
 * two kinds.
 */
final class DataServer {
    private static final int MAGIC = 0x53534757;
    private static final int VERSION = 5;
    private static final int CONNECTIONS_MAX = 256;
    /**
     * How long a handshake may take: a connection that stays silent holds one of the places above.
     */
    private static final long HANDSHAKE_MILLIS =
            Long.getLong("segmentstore.gateway.handshake.millis", 10_000);

    /**
     * An entry of some 1 MiB takes five times its size for three bookies, with the pool's rounding.
     * The rest is for readings.
     */
    private static final int MEMORY_PER_ENTRY_BYTE = 8;

    private final Path path;
    private final byte[] token;
    private final ServerSocketChannel server;
    private final Map<Integer, Session> sessions = new ConcurrentHashMap<>();
    private final AtomicInteger numbers = new AtomicInteger();
    private final Semaphore connections = new Semaphore(CONNECTIONS_MAX);
    private final ScheduledExecutorService deadlines =
            Executors.newSingleThreadScheduledExecutor(task -> {
        Thread thread = new Thread(task, "data-handshake-deadlines");
        thread.setDaemon(true);
        return thread;
    });
    final AtomicLong entriesHeld = new AtomicLong();
    private final EntryRoom room = new EntryRoom(Math.max(
            AddConnection.WINDOW_BYTES,
            PlatformDependent.maxDirectMemory() / MEMORY_PER_ENTRY_BYTE));

    DataServer(Path path, byte[] token) throws IOException {
        this.path = path;
        this.token = token;
        server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)
                .bind(UnixDomainSocketAddress.of(path));
    }

    Path path() {
        return path;
    }

    long held() {
        return entriesHeld.get();
    }

    Session session(int id) throws BKException {
        Session session = sessions.get(id);
        if (session == null) {
            throw new BKException.BKClientClosedException();
        }
        return session;
    }

    void start() {
        Thread accepting = new Thread(() -> {
            while (true) {
                try {
                    connections.acquire();
                    SocketChannel channel = server.accept();
                    Thread serving = new Thread(() -> serve(channel), "data");
                    serving.setDaemon(true);
                    serving.start();
                } catch (IOException | InterruptedException failure) {
                    Gateway.LOG.error("no more connections for entries", failure);
                    Runtime.getRuntime().halt(1);
                }
            }
        }, "data-accept");
        accepting.start();
    }

    private void serve(SocketChannel channel) {
        Future<?> deadline = deadlines.schedule(
                () -> hangUp(channel), HANDSHAKE_MILLIS, TimeUnit.MILLISECONDS);
        try (channel) {
            ByteBuffer hello = read(channel, 8);
            if (hello.getInt() != MAGIC || hello.get() != VERSION) {
                return;
            }
            byte kind = hello.get();
            int length = Short.toUnsignedInt(hello.getShort());
            if (length > 1024) {
                return;
            }
            byte[] said = new byte[length];
            read(channel, length).get(said);
            if (!MessageDigest.isEqual(said, token)) {
                return;
            }
            ByteBuffer wanted = kind == 'R' ? read(channel, 28) : null;
            if (!deadline.cancel(false)) {
                return;
            }
            if (kind == 'A') {
                adds(channel);
            } else if (wanted != null) {
                new ReadConnection(channel, session(wanted.getInt()), entriesHeld)
                        .run(wanted.getLong(), wanted.getLong(), wanted.getLong());
            }
        } catch (IOException | InterruptedException | BKException ended) {
            Gateway.LOG.debug("a connection ended", ended);
        } finally {
            deadline.cancel(false);
            connections.release();
        }
    }

    private static void hangUp(SocketChannel channel) {
        try {
            channel.close();
        } catch (IOException failure) {
            Gateway.LOG.debug("a silent connection could not be closed", failure);
        }
    }

    private void adds(SocketChannel channel) throws IOException {
        Session session = new Session(numbers.incrementAndGet(), room.share());
        sessions.put(session.id, session);
        try {
            ByteBuffer reply = ByteBuffer.allocate(8).putInt(Codes.OK).putInt(session.id).flip();
            while (reply.hasRemaining()) {
                channel.write(reply);
            }
            new AddConnection(channel, this, session).run();
        } finally {
            sessions.remove(session.id);
            session.end();
        }
    }

    private static ByteBuffer read(SocketChannel channel, int bytes) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocate(bytes);
        while (buffer.hasRemaining()) {
            if (channel.read(buffer) < 0) {
                throw new EOFException();
            }
        }
        return buffer.flip();
    }
}
