package org.apache.bookkeeper.client;

import java.io.IOException;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import io.netty.buffer.ByteBufAllocator;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.proto.BookieClientImpl;

/**
 * BookKeeper's client, whose ledgers reach the bookies through one object of ours. In this package,
 * for a context's settings are of a type that others do not see.
 */
public final class WatchedBookKeeper extends BookKeeper {
    private volatile ClientContext watched;

    /**
     * `through` is given the way to the bookies that the client has, and answers the one its
     * ledgers take.
     */
    public WatchedBookKeeper(
            ClientConfiguration settings, Function<WatchedBookKeeper, BookieClient> through)
            throws IOException, InterruptedException, BKException {
        super(settings);
        watched = new Context(super.getClientCtx(), through.apply(this));
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
