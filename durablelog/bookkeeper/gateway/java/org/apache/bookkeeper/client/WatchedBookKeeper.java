package org.apache.bookkeeper.client;

import java.io.IOException;
import java.net.URI;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import io.netty.buffer.ByteBufAllocator;
import io.netty.util.HashedWheelTimer;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.feature.FeatureProvider;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.zk.ZKMetadataDriverBase;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.DNSToSwitchMapping;
import org.apache.bookkeeper.proto.BookieAddressResolver;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.proto.BookieClientImpl;
import org.apache.bookkeeper.stats.StatsLogger;
import org.apache.bookkeeper.util.BookKeeperConstants;
import org.apache.bookkeeper.zookeeper.ZooKeeperClient;
import org.apache.commons.configuration2.ex.ConfigurationException;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooKeeper;

/**
 * BookKeeper's client, whose ledgers reach the bookies through one object of ours. In this package,
 * for a context's settings are of a type that others do not see.
 */
public final class WatchedBookKeeper extends BookKeeper {
    /** The client that this thread makes, once it has something to close. */
    private static final ThreadLocal<WatchedBookKeeper> MAKING = new ThreadLocal<>();

    private volatile ClientContext watched;

    private WatchedBookKeeper(
            ClientConfiguration settings, Function<WatchedBookKeeper, BookieClient> through)
            throws IOException, InterruptedException, BKException {
        super(settings);
        watched = new Context(super.getClientCtx(), through.apply(this));
    }

    /**
     * `through` is given the way to the bookies that the client has, and answers the one its
     * ledgers take.
     *
     * A client that cannot be made leaves nothing behind. By itself it would keep its threads, and
     * its session with ZooKeeper, which takes a bounded number from each machine.
     */
    public static WatchedBookKeeper make(
            ClientConfiguration settings, Function<WatchedBookKeeper, BookieClient> through)
            throws IOException, InterruptedException, BKException, KeeperException,
            ConfigurationException {
        checkZooKeeper(settings);
        try {
            return new WatchedBookKeeper(settings, through);
        } catch (Throwable failure) {
            WatchedBookKeeper unfinished = MAKING.get();
            if (unfinished != null) {
                unfinished.release();
            }
            throw failure;
        } finally {
            MAKING.remove();
        }
    }

    /**
     * Before the client has begun what its caller could not end: throws if no server answers, or
     * BookKeeper has no nodes there.
     */
    private static void checkZooKeeper(ClientConfiguration settings)
            throws IOException, InterruptedException, KeeperException, ConfigurationException {
        URI location = URI.create(settings.getMetadataServiceUri());
        ZooKeeper server = ZooKeeperClient.newBuilder()
                .connectString(ZKMetadataDriverBase.getZKServersFromServiceUri(location))
                .sessionTimeoutMs(settings.getZkTimeout())
                .build();
        try {
            String bookies = location.getPath() + "/" + BookKeeperConstants.AVAILABLE_NODE;
            if (server.exists(bookies, false) == null) {
                throw KeeperException.create(KeeperException.Code.NONODE, bookies);
            }
        } finally {
            // Closing takes longer than all that was asked.
            Thread closing = new Thread(() -> {
                try {
                    server.close();
                } catch (InterruptedException ended) {
                    Thread.currentThread().interrupt();
                }
            }, "close-zookeeper");
            closing.setDaemon(true);
            closing.start();
        }
    }

    /** The first that the constructor calls after its threads have begun. */
    @Override
    protected EnsemblePlacementPolicy initializeEnsemblePlacementPolicy(
            ClientConfiguration settings, DNSToSwitchMapping resolver, HashedWheelTimer timer,
            FeatureProvider features, StatsLogger statistics, BookieAddressResolver addresses)
            throws IOException {
        MAKING.set(this);
        return super.initializeEnsemblePlacementPolicy(
                settings, resolver, timer, features, statistics, addresses);
    }

    /** As `close`, of one that is not complete. */
    private void release() {
        scheduler.shutdownNow();
        mainWorkerPool.shutdownNow();
        if (bookieClient != null) {
            bookieClient.close();
        }
        if (bookieInfoScheduler != null) {
            bookieInfoScheduler.shutdownNow();
        }
        requestTimer.stop();
        eventLoopGroup.shutdownGracefully();
        metadataDriver.close();
    }

    /** The client asks for it while it is being made, too. */
    @Override
    public ClientContext getClientCtx() {
        ClientContext known = watched;
        return known == null ? super.getClientCtx() : known;
    }

    /** The client's own way to the bookies. */
    public BookieClientImpl direct() {
        return (BookieClientImpl) getBookieClient();
    }

    /**
     * New ensembles do without this bookie, if there are enough others. It passes:
     * bookieQuarantineTimeSeconds.
     */
    public void avoid(BookieId bookie) {
        getBookieWatcher().quarantineBookie(bookie);
    }

    /** The bookies that take entries, as the metadata service has them now. */
    public CompletableFuture<Set<BookieId>> registered() {
        return getMetadataClientDriver().getRegistrationClient().getWritableBookies()
                .thenApply(versioned -> versioned.getValue());
    }

    private record Context(ClientContext known, BookieClient bookies) implements ClientContext {
        @Override
        public BookieClient getBookieClient() {
            return bookies;
        }

        @Override
        public ClientInternalConf getConf() {
            return known.getConf();
        }

        @Override
        public LedgerManager getLedgerManager() {
            return known.getLedgerManager();
        }

        @Override
        public BookieWatcher getBookieWatcher() {
            return known.getBookieWatcher();
        }

        @Override
        public EnsemblePlacementPolicy getPlacementPolicy() {
            return known.getPlacementPolicy();
        }

        @Override
        public ByteBufAllocator getByteBufAllocator() {
            return known.getByteBufAllocator();
        }

        @Override
        public OrderedExecutor getMainWorkerPool() {
            return known.getMainWorkerPool();
        }

        @Override
        public OrderedScheduler getScheduler() {
            return known.getScheduler();
        }

        @Override
        public BookKeeperClientStats getClientStats() {
            return known.getClientStats();
        }

        @Override
        public boolean isClientClosed() {
            return known.isClientClosed();
        }
    }
}
