package segmentstore;

import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelPipeline;
import io.netty.handler.ssl.SslHandler;
import io.netty.handler.ssl.SslHandshakeTimeoutException;
import java.nio.channels.ClosedChannelException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import javax.net.ssl.SSLException;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.WatchedBookKeeper;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;

/**
 * Why bookies and this client did not agree on TLS, as their last handshakes ended. BookKeeper's
 * client says a code alone.
 */
final class Refusals {
    /** `ended`: the connection only ended, which says nothing about settings. */
    private record Reason(String text, boolean ended) {}

    private final Map<String, Reason> reasons = new ConcurrentHashMap<>();

    /** Of a connection that is about to begin. */
    void watch(SslHandler encryption, String peer) {
        encryption.handshakeFuture().addListener(handshake -> {
            if (!handshake.isSuccess()) {
                note(peer, handshake.cause());
                return;
            }
            reasons.remove(peer);
            // By TLS 1.3 the other side may refuse a certificate after that.
            ChannelPipeline pipeline = encryption.handshakeFuture().getNow().pipeline();
            String before = pipeline.context(encryption).name();
            pipeline.addAfter(before, null, new ChannelInboundHandlerAdapter() {
                @Override
                public void exceptionCaught(ChannelHandlerContext context, Throwable failure) {
                    note(peer, failure);
                    context.fireExceptionCaught(failure);
                }
            });
        });
    }

    private void note(String peer, Throwable failure) {
        Throwable last = failure;
        boolean encryption = false;
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            encryption |= cause instanceof SSLException;
            last = cause;
        }
        String text =
                last.getMessage() == null ? last.getClass().getSimpleName() : last.getMessage();
        boolean ended = !encryption || last instanceof ClosedChannelException
                || last instanceof SslHandshakeTimeoutException
                || text.startsWith("Connection closed while");
        reasons.put(peer, new Reason(text.replaceAll("\\s+", " "), ended));
    }

    /**
     * Why a bookie did not admit the client, and which settings to check; null if a code does not
     * say that it refused.
     */
    String words(WatchedBookKeeper client, BookieId id, int code) {
        if (code == BKException.Code.UnauthorizedAccessException) {
            return "it does not let in whom it does not know:"
                    + " see clientAuthProviderFactoryClass,"
                    + " and its section in java.security.auth.login.config";
        }
        // Refused after its handshake, a client gets a closed connection.
        if (code != BKException.Code.SecurityException
                && code != BKException.Code.BookieHandleNotAvailableException) {
            return null;
        }
        Reason reason = reasons.get(peer(client, id));
        if (reason == null && code == BKException.Code.SecurityException) {
            return "it does not speak TLS: see tlsProviderFactoryClass";
        }
        if (reason == null || reason.ended()) {
            return null;
        }
        // Java's own words, and OpenSSL's.
        boolean alerted =
                reason.text().contains("fatal alert") || reason.text().contains("_ALERT_");
        return "TLS: " + reason.text() + (alerted
                ? ": it refuses this client: see tlsClientAuthentication, clientKeyStore,"
                        + " tlsCertificatePath"
                : ": this client does not trust it: see clientTrustStore");
    }

    private static String peer(WatchedBookKeeper client, BookieId id) {
        try {
            BookieSocketAddress address = client.getBookieAddressResolver().resolve(id);
            return peer(address.getHostName(), address.getPort());
        } catch (RuntimeException unknown) {
            return id.toString();
        }
    }

    static String peer(String host, int port) {
        return host + ":" + port;
    }
}
