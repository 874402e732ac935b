package segmentstore;

import io.netty.buffer.ByteBufAllocator;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.WatchedBookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ListLedgersResult;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.tls.SecurityHandlerFactory;
import org.apache.bookkeeper.tls.SecurityProviderFactoryFactory;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import py4j.DefaultGatewayServerListener;
import py4j.GatewayServer;
import py4j.Py4JServerConnection;

/**
 * The control calls, as py4j makes them. Rules: no policy (settings, retries and decisions are the
 * caller's); no exception and no object goes through py4j: an answer is one String, its first line
 * BookKeeper's code, its other lines the result or what went wrong; every call ends within the time
 * it was given. Formats: docs/formats/bookkeeper-data-plane.md.
 */
public final class Gateway {
    static final Logger LOG = LoggerFactory.getLogger(Gateway.class);
    static final String TOKEN_VARIABLE = "SEGMENTSTORE_GATEWAY_TOKEN";

    private final DataServer data;

    Gateway(DataServer data) {
        this.data = data;
    }

    /**
     * Arguments: the folder for socket and log, the port (0 for any), the process id of the parent
     * (0: do not watch it).
     */
    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        String token = System.getenv(TOKEN_VARIABLE);
        if (token == null || token.isEmpty()) {
            throw new IllegalArgumentException(TOKEN_VARIABLE + " is not set");
        }
        Parent.endWith(Long.parseLong(arguments[2]), folder);
        DataServer data =
                new DataServer(folder.resolve("data"), token.getBytes(StandardCharsets.UTF_8));
        GatewayServer control = new GatewayServer.GatewayServerBuilder(new Gateway(data))
                .javaPort(Integer.parseInt(arguments[1]))
                .javaAddress(InetAddress.getLoopbackAddress())
                .authToken(token)
                .build();
        control.addListener(new DefaultGatewayServerListener() {
            @Override
            public void connectionStarted(Py4JServerConnection connection) {
                try {
                    // Answers of some 10 KiB would wait 40 ms for a delayed acknowledgement.
                    connection.getSocket().setTcpNoDelay(true);
                } catch (java.net.SocketException ended) {
                    LOG.debug("connection ended at once", ended);
                }
            }
        });
        data.start();
        control.start();
        System.out.println("port " + control.getListeningPort());
        System.out.flush();
        // The program that started this one reads that pipe no more.
        System.setOut(System.err);
    }

    public String dataSocket() {
        return Codes.OK + "\n" + data.path();
    }

    /**
     * Connects the session of a data connection. `settings` has a line "key=value" for each of
     * BookKeeper's client, `system` one for each system property.
     */
    public String connect(
            int session, String settings, String system, byte[] password, long millis) {
        CompletableFuture<Void> connected = new CompletableFuture<>();
        // A thread of its own: the client's constructor takes no deadline.
        Thread connecting = new Thread(() -> {
            try {
                SystemProperties.set(system);
                ClientConfiguration configuration = configuration(settings);
                checkEncryption(configuration);
                // Bookies that are silent are not waited for to the end.
                data.session(session).connect(configuration, password, millis / 2);
                connected.complete(null);
            } catch (Throwable failure) {
                connected.completeExceptionally(failure);
            }
        }, "connect-" + session);
        connecting.setDaemon(true);
        connecting.start();
        try {
            connected.get(millis, TimeUnit.MILLISECONDS);
            return Codes.OK + "\n";
        } catch (TimeoutException slow) {
            return Codes.answer(Codes.TIMEOUT, "no answer within " + millis + " ms");
        } catch (Throwable failure) {
            return Codes.answerOfConnecting(failure);
        }
    }

    /** The client itself finds out with its first bookie, and says that it is not there. */
    private static void checkEncryption(ClientConfiguration configuration) throws Exception {
        String factory = configuration.getTLSProviderFactoryClass();
        if (factory != null && !factory.isEmpty()) {
            SecurityProviderFactoryFactory.getSecurityProviderFactory(factory)
                    .init(SecurityHandlerFactory.NodeType.Client, configuration,
                            ByteBufAllocator.DEFAULT);
        }
    }

    private static ClientConfiguration configuration(String settings) {
        ClientConfiguration configuration = new ClientConfiguration();
        settings.lines().forEach(line -> {
            String[] pair = line.split("=", 2);
            configuration.setProperty(pair[0], pair[1]);
        });
        return configuration;
    }

    /** Answers: the writer's handle, the ledger's id, its bookies. */
    public String create(
            int session, int ensemble, int write, int ack, String custom, long millis) {
        try {
            Session owner = data.session(session);
            WatchedBookKeeper client = owner.client();
            owner.bookies().avoidTroubled();
            CompletableFuture<WriteHandle> made = owner.create(() -> client.newCreateLedgerOp()
                    .withEnsembleSize(ensemble).withWriteQuorumSize(write).withAckQuorumSize(ack)
                    .withDigestType(DigestType.CRC32C).withPassword(owner.password)
                    .withCustomMetadata(custom(custom))
                    .execute());
            return answer(made, millis,
                    writer -> owner.add((LedgerHandle) writer) + "\n" + writer.getId() + "\n"
                            + names(writer.getLedgerMetadata().getAllEnsembles()
                                    .firstEntry().getValue()),
                    late -> discard(owner, late), Codes::answerOfCreating);
        } catch (Throwable failure) {
            return Codes.answerOfCreating(failure);
        }
    }

    /**
     * A ledger that was created when no caller waited for it any more: no writer knows its id, so
     * nothing is ever in it.
     */
    private static void discard(Session owner, WriteHandle late) {
        late.closeAsync().whenComplete((nothing, unsealed) -> {
            try {
                owner.client().newDeleteLedgerOp().withLedgerId(late.getId()).execute()
                        .exceptionally(failure -> {
                    LOG.warn("ledger {}, created without a caller, stays", late.getId(), failure);
                    return null;
                });
            } catch (Exception ended) {
                LOG.warn("ledger {}, created without a caller, stays", late.getId(), ended);
            }
        });
    }

    public String closeWriter(int session, int handle, long millis) {
        try {
            LedgerHandle writer = data.session(session).remove(handle);
            if (writer == null) {
                return Codes.answer(Codes.LEDGER_CLOSED, "no such writer");
            }
            return answer(writer.closeAsync(), millis, nothing -> "", nothing -> {});
        } catch (Throwable failure) {
            return Codes.answer(failure);
        }
    }

    public String recover(int session, long ledger, long millis) {
        try {
            Session owner = data.session(session);
            return answer(owner.client().newOpenLedgerOp().withLedgerId(ledger).withRecovery(true)
                    .withDigestType(DigestType.CRC32C).withPassword(owner.password).execute(),
                    millis, reader -> {
                        reader.closeAsync();
                        return text(reader.getId(), reader.getLedgerMetadata());
                    }, reader -> reader.closeAsync());
        } catch (Throwable failure) {
            return Codes.answer(failure);
        }
    }

    /**
     * Answers: the last entry known to be acknowledged, or the end of a closed ledger. Fences
     * nothing.
     */
    public String confirmed(int session, long ledger, long millis) {
        try {
            Session owner = data.session(session);
            CompletableFuture<Long> found = owner.client().newOpenLedgerOp()
                    .withLedgerId(ledger).withRecovery(false)
                    .withDigestType(DigestType.CRC32C).withPassword(owner.password).execute()
                    .thenCompose(reader -> confirmed((LedgerHandle) reader)
                            .whenComplete((last, failure) -> reader.closeAsync()));
            return answer(found, millis, last -> "" + last, last -> {});
        } catch (Throwable failure) {
            return Codes.answer(failure);
        }
    }

    /**
     * What its writer has sent to the bookies, with its entries or, once it is idle, by itself
     * (explicitLacInterval).
     */
    private static CompletableFuture<Long> confirmed(LedgerHandle reader) {
        CompletableFuture<Long> found = new CompletableFuture<>();
        reader.asyncReadExplicitLastConfirmed((code, last, context) -> {
            if (code == Codes.OK) {
                found.complete(last);
            } else {
                found.completeExceptionally(org.apache.bookkeeper.client.BKException.create(code));
            }
        }, null);
        return found;
    }

    public String describe(int session, long ledger, long millis) {
        try {
            return answer(data.session(session).client().getLedgerMetadata(ledger), millis,
                    metadata -> text(ledger, metadata), metadata -> {});
        } catch (Throwable failure) {
            return Codes.answer(failure);
        }
    }

    public String delete(int session, long ledger, long millis) {
        try {
            return answer(
                    data.session(session).client().newDeleteLedgerOp().withLedgerId(ledger)
                            .execute(), millis,
                    nothing -> "", nothing -> {});
        } catch (Throwable failure) {
            return Codes.answer(failure);
        }
    }

    /** Answers: the number of a walk over all ledgers. */
    public String listOpen(int session, long millis) {
        try {
            Session owner = data.session(session);
            CompletableFuture<ListLedgersResult> listed =
                    owner.client().newListLedgersOp().execute();
            return answer(listed, millis, result -> "" + owner.add(result), Gateway::closeQuietly);
        } catch (Throwable failure) {
            return Codes.answer(failure);
        }
    }

    /** Answers: the next ids, a blank between two; none at the end, which also ends the walk. */
    public String listNext(int session, int number, int count) {
        try {
            Session owner = data.session(session);
            Session.Listing listing = owner.listing(number);
            StringBuilder page = new StringBuilder("" + Codes.OK + "\n");
            boolean any = false;
            for (int taken = 0;
                    listing != null && taken < count && listing.ids().hasNext();
                    taken++, any = true) {
                page.append(any ? " " : "").append((long) listing.ids().next());
            }
            if (!any) {
                owner.drop(number);
            }
            return page.toString();
        } catch (Throwable failure) {
            return Codes.answer(failure);
        }
    }

    /** Answers: the bookies this session has sent entries to, as Bookies reports them. */
    public String bookies(int session) {
        try {
            Session owner = data.session(session);
            owner.client();
            return Codes.OK + "\n" + owner.bookies().text();
        } catch (Throwable failure) {
            return Codes.answer(failure);
        }
    }

    /** Answers: the bookies that take entries, as the metadata service has them. */
    public String registered(int session, long millis) {
        try {
            return answer(data.session(session).client().registered(), millis, Gateway::names,
                    nothing -> {});
        } catch (Throwable failure) {
            return Codes.answer(failure);
        }
    }

    /** The native client's floor in this very JVM; answers one line of JSON. */
    public String bench(
            int session, int ensemble, int write, int ack, int size, int window, double seconds) {
        try {
            Session owner = data.session(session);
            return Codes.OK + "\n"
                    + NativeBench.run(owner, ensemble, write, ack, size, window, seconds);
        } catch (Throwable failure) {
            return Codes.answer(failure);
        }
    }

    /** CPU of this process so far, microseconds, and direct memory in use, bytes. */
    public String usage() {
        return Codes.OK + "\n" + NativeBench.cpuMicros() + "\n"
                + io.netty.buffer.PooledByteBufAllocator.DEFAULT.metric().usedDirectMemory() + "\n"
                + data.held();
    }

    private static <T> String answer(
            CompletableFuture<T> future, long millis, Function<T, String> text, Consumer<T> late) {
        return answer(future, millis, text, late, Codes::answer);
    }

    private static <T> String answer(
            CompletableFuture<T> future, long millis, Function<T, String> text, Consumer<T> late,
            Function<Throwable, String> failed) {
        try {
            return Codes.OK + "\n" + text.apply(future.get(millis, TimeUnit.MILLISECONDS));
        } catch (TimeoutException slow) {
            future.thenAccept(late);
            return Codes.answer(Codes.TIMEOUT, "no answer within " + millis + " ms");
        } catch (Throwable failure) {
            return failed.apply(failure);
        }
    }

    private static void closeQuietly(ListLedgersResult result) {
        try {
            result.close();
        } catch (Exception failure) {
            LOG.debug("closing a listing", failure);
        }
    }

    private static String text(long ledger, LedgerMetadata metadata) {
        StringBuilder lines = new StringBuilder();
        lines.append(ledger).append('\n').append(metadata.getState()).append('\n')
                .append(metadata.isClosed() ? metadata.getLastEntryId() : -1).append('\n')
                .append(metadata.isClosed() ? metadata.getLength() : 0).append('\n')
                .append(metadata.getEnsembleSize()).append(' ')
                .append(metadata.getWriteQuorumSize())
                .append(' ').append(metadata.getAckQuorumSize()).append('\n')
                .append(metadata.getDigestType()).append('\n')
                .append(metadata.getCtime()).append('\n')
                .append(metadata.getAllEnsembles().size());
        metadata.getAllEnsembles().forEach((first, bookies) ->
                lines.append('\n').append(first).append(' ').append(names(bookies)));
        for (Map.Entry<String, byte[]> item : metadata.getCustomMetadata().entrySet()) {
            lines.append('\n').append(base64(item.getKey().getBytes(StandardCharsets.UTF_8)))
                    .append(' ').append(base64(item.getValue()));
        }
        return lines.toString();
    }

    private static String names(Collection<BookieId> bookies) {
        return bookies.stream().map(BookieId::toString).collect(Collectors.joining(" "));
    }

    private static Map<String, byte[]> custom(String lines) {
        Map<String, byte[]> custom = new HashMap<>();
        lines.lines().forEach(line -> {
            String[] pair = line.split(" ", 2);
            custom.put(new String(Base64.getDecoder().decode(pair[0]), StandardCharsets.UTF_8),
                    Base64.getDecoder().decode(pair[1]));
        });
        return custom;
    }

    private static String base64(byte[] value) {
        return Base64.getEncoder().encodeToString(value);
    }
}
