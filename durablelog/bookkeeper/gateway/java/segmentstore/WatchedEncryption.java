package segmentstore;

import io.netty.buffer.ByteBufAllocator;
import io.netty.handler.ssl.SslHandler;
import org.apache.bookkeeper.conf.AbstractConfiguration;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.tls.SecurityException;
import org.apache.bookkeeper.tls.SecurityHandlerFactory;
import org.apache.bookkeeper.tls.SecurityProviderFactoryFactory;

/**
 * The factory of TLS that the settings name; it records how handshakes end. The client makes it
 * by its name.
 */
public final class WatchedEncryption implements SecurityHandlerFactory {
    private static final String REFUSALS = "segmentstore.refusals";
    private static final String FACTORY = "segmentstore.tlsProviderFactoryClass";

    private SecurityHandlerFactory factory;
    private Refusals refusals;

    /**
     * Where the failures of a client with these settings are noted from now on, if it speaks TLS.
     */
    static Refusals watch(ClientConfiguration settings) {
        Refusals noted = new Refusals();
        String named = settings.getTLSProviderFactoryClass();
        if (named != null && !named.isEmpty()) {
            settings.setProperty(REFUSALS, noted);
            settings.setProperty(FACTORY, named);
            settings.setTLSProviderFactoryClass(WatchedEncryption.class.getName());
        }
        return noted;
    }

    @Override
    public String getHandlerName() {
        return factory.getHandlerName();
    }

    @Override
    public void init(NodeType type, AbstractConfiguration settings, ByteBufAllocator allocator)
            throws SecurityException {
        refusals = (Refusals) settings.getProperty(REFUSALS);
        factory = SecurityProviderFactoryFactory.getSecurityProviderFactory(
                settings.getString(FACTORY));
        factory.init(type, settings, allocator);
    }

    @Override
    public SslHandler newTLSHandler() {
        return factory.newTLSHandler();
    }

    @Override
    public SslHandler newTLSHandler(String host, int port) {
        SslHandler encryption = factory.newTLSHandler(host, port);
        refusals.watch(encryption, Refusals.peer(host, port));
        return encryption;
    }
}
