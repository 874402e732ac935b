// Pulsar's own offloader to object storage, driven by lines: a witness of what this project writes and reads.
//
// Arguments: endpoint, bucket, access key, secret. Each line of standard input is a command and gets one line:
//   offload UUID LEDGER RULE BLOCK_BYTES   archive a ledger whose entries a rule makes
//   read UUID LEDGER                       all entries in order: count, bytes, SHA-256, and the metadata
//   entry UUID LEDGER ID                   one entry, hexadecimal
//   delete UUID LEDGER
//   local RULE BLOCK_BYTES                 the two objects without any store: lengths and SHA-256

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.offload.jcloud.OffloadIndexBlock;
import org.apache.bookkeeper.mledger.offload.jcloud.OffloadIndexBlockBuilder;
import org.apache.bookkeeper.mledger.offload.jcloud.impl.BlobStoreManagedLedgerOffloader;
import org.apache.bookkeeper.mledger.offload.jcloud.impl.BlockAwareSegmentInputStreamImpl;
import org.apache.bookkeeper.mledger.offload.jcloud.provider.TieredStorageConfiguration;
import org.apache.bookkeeper.net.BookieId;

public final class PulsarOffloader {
    private static final int BATCH = 100;
    private static final long PATIENCE_S = 120;

    /** A closed ledger whose entries are computed. */
    private static final class Ledger implements ReadHandle {
        private final long id;
        private final int[] sizes;
        private final LedgerMetadata metadata;

        Ledger(long id, String rule) {
            this.id = id;
            sizes = sizes(rule);
            long length = 0;
            for (int size : sizes) {
                length += size;
            }
            metadata = LedgerMetadataBuilder.create().withId(id).withEnsembleSize(1).withWriteQuorumSize(1)
                .withAckQuorumSize(1).withDigestType(DigestType.CRC32C).withPassword(new byte[0])
                .newEnsembleEntry(0, List.of(BookieId.parse("127.0.0.1:3181")))
                .withCreationTime(1700000000000L).storingCreationTime(true)
                .withCustomMetadata(Map.of("application", "pulsar".getBytes(StandardCharsets.UTF_8)))
                .withClosedState().withLastEntryId(sizes.length - 1).withLength(length).build();
        }

        private static int[] sizes(String rule) {
            if (rule.equals("small3")) {
                return new int[] {0, 5, 16};
            }
            int[] made = new int[10_000];
            int every = rule.equals("large") ? 100 : 1000;
            int size = rule.equals("large") ? 1 << 20 : 102_400;
            for (int i = 0; i < made.length; i++) {
                long mixed = ((i * 2654435761L + 12345) & 0xffffffffL) >> 8;
                made[i] = i % every == every - 1 ? size : i % 10 == 0 ? 0 : (int) (mixed % 4096);
            }
            return made;
        }

        private ByteBuf payload(long entry) {
            byte[] data = new byte[sizes[(int) entry]];
            for (int j = 0; j < data.length; j++) {
                data[j] = (byte) (entry * 131 + j * 17L + (j >> 8));
            }
            return Unpooled.wrappedBuffer(data);
        }

        @Override
        public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
            List<LedgerEntry> entries = new ArrayList<>();
            for (long entry = first; entry <= last; entry++) {
                ByteBuf data = payload(entry);
                entries.add(LedgerEntryImpl.create(id, entry, data.readableBytes(), data));
            }
            return CompletableFuture.completedFuture(LedgerEntriesImpl.create(entries));
        }

        @Override
        public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
            return readAsync(first, last);
        }

        @Override
        public CompletableFuture<Long> readLastAddConfirmedAsync() {
            return CompletableFuture.completedFuture(getLastAddConfirmed());
        }

        @Override
        public CompletableFuture<Long> tryReadLastAddConfirmedAsync() {
            return readLastAddConfirmedAsync();
        }

        @Override
        public long getLastAddConfirmed() {
            return sizes.length - 1;
        }

        @Override
        public long getLength() {
            return metadata.getLength();
        }

        @Override
        public boolean isClosed() {
            return true;
        }

        @Override
        public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(
                long entry, long timeout, boolean parallel) {
            throw new UnsupportedOperationException();
        }

        @Override
        public long getId() {
            return id;
        }

        @Override
        public LedgerMetadata getLedgerMetadata() {
            return metadata;
        }

        @Override
        public CompletableFuture<Void> closeAsync() {
            return CompletableFuture.completedFuture(null);
        }
    }

    /** The stock configuration, but that it asks nothing outside this machine. */
    private static final class Configuration extends TieredStorageConfiguration {
        private final String endpoint;

        Configuration(Map<String, String> settings, String endpoint) {
            super(settings);
            this.endpoint = endpoint;
        }

        @Override
        protected Properties getOverrides() {
            Properties properties = super.getOverrides();
            // Else it asks the public endpoint for the bucket's location before each request.
            properties.setProperty("jclouds.regions", "us-east-1");
            properties.setProperty("jclouds.region.us-east-1.endpoint", endpoint);
            properties.setProperty("jclouds.max-retries", "2");
            properties.setProperty("jclouds.strip-expect-header", "true");
            return properties;
        }
    }

    private final String[] place;
    private BlobStoreManagedLedgerOffloader offloader;
    private int blockBytes;

    private PulsarOffloader(String[] place) {
        this.place = place;
    }

    public static void main(String[] arguments) throws Exception {
        PulsarOffloader witness = new PulsarOffloader(arguments);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("ready");
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer;
            try {
                answer = "ok " + witness.run(line.split(" "));
            } catch (Throwable error) {
                answer = "failed " + String.valueOf(error).replace('\n', ' ');
            }
            System.out.println(answer);
        }
        // A thread of the offloader may be in a loop that nothing ends.
        Runtime.getRuntime().halt(0);
    }

    private String run(String[] words) throws Exception {
        switch (words[0]) {
            case "local":
                return local(new Ledger(7, words[1]), Integer.parseInt(words[2]));
            case "offload":
                at(Integer.parseInt(words[4]));
                Ledger ledger = new Ledger(Long.parseLong(words[2]), words[3]);
                wait(offloader.offload(ledger, UUID.fromString(words[1]), Map.of("ManagedLedgerName", "witness")));
                return "";
            case "read":
                return read(open(words));
            case "entry":
                return entry(open(words), Long.parseLong(words[3]));
            case "delete":
                at(5 << 20);
                wait(offloader.deleteOffloaded(
                    Long.parseLong(words[2]), UUID.fromString(words[1]), offloader.getOffloadDriverMetadata()));
                return "";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** An offloader that makes blocks of this size. */
    private void at(int bytes) throws Exception {
        if (offloader != null && bytes == blockBytes) {
            return;
        }
        Map<String, String> settings = new HashMap<>();
        settings.put("managedLedgerOffloadDriver", "aws-s3");
        settings.put("managedLedgerOffloadServiceEndpoint", place[0]);
        settings.put("managedLedgerOffloadBucket", place[1]);
        settings.put("managedLedgerOffloadRegion", "us-east-1");
        settings.put("managedLedgerOffloadMaxBlockSizeInBytes", String.valueOf(bytes));
        settings.put("managedLedgerOffloadReadBufferSizeInBytes", "1048576");
        settings.put("s3ManagedLedgerOffloadCredentialId", place[2]);
        settings.put("s3ManagedLedgerOffloadCredentialSecret", place[3]);
        OrderedScheduler scheduler = OrderedScheduler.newSchedulerBuilder().numThreads(1).name("offload").build();
        offloader = BlobStoreManagedLedgerOffloader.create(
            new Configuration(settings, place[0]), Map.of("S3ManagedLedgerOffloaderSoftwareVersion", "2.10.1"), scheduler);
        blockBytes = bytes;
    }

    private ReadHandle open(String[] words) throws Exception {
        at(5 << 20);
        return wait(offloader.readOffloaded(
            Long.parseLong(words[2]), UUID.fromString(words[1]), offloader.getOffloadDriverMetadata()));
    }

    private static String read(ReadHandle handle) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        long count = 0;
        long bytes = 0;
        long last = handle.getLastAddConfirmed();
        for (long first = 0; first <= last; first += BATCH) {
            try (LedgerEntries entries = wait(handle.readAsync(first, Math.min(last, first + BATCH - 1)))) {
                for (LedgerEntry entry : entries) {
                    byte[] data = entry.getEntryBytes();
                    digest.update(ByteBuffer.allocate(12).putLong(entry.getEntryId()).putInt(data.length).array());
                    digest.update(data);
                    count++;
                    bytes += data.length;
                }
            }
        }
        LedgerMetadata metadata = handle.getLedgerMetadata();
        return String.join(" ", String.valueOf(count), String.valueOf(bytes), hex(digest), String.valueOf(last),
            String.valueOf(handle.getLength()), String.valueOf(handle.isClosed()),
            String.valueOf(metadata.getCtime()), String.valueOf(metadata.getDigestType()),
            String.join(",", metadata.getCustomMetadata().keySet()));
    }

    private static String entry(ReadHandle handle, long id) throws Exception {
        try (LedgerEntries entries = wait(handle.readAsync(id, id))) {
            return HexFormat.of().formatHex(entries.getEntry(id).getEntryBytes());
        }
    }

    private static String local(Ledger ledger, int bytesMax) throws Exception {
        MessageDigest data = MessageDigest.getInstance("SHA-256");
        OffloadIndexBlockBuilder index = OffloadIndexBlockBuilder.create()
            .withLedgerMetadata(ledger.getLedgerMetadata()).withDataBlockHeaderLength(128);
        long length = 0;
        long written = 0;
        int part = 1;
        for (long first = 0; first <= ledger.getLastAddConfirmed(); part++) {
            int size = BlockAwareSegmentInputStreamImpl.calculateBlockSize(bytesMax, ledger, first, written);
            try (BlockAwareSegmentInputStreamImpl block = new BlockAwareSegmentInputStreamImpl(ledger, first, size)) {
                data.update(block.readAllBytes());
                index.addBlock(first, part, size);
                length += size;
                written += block.getBlockEntryBytesCount();
                first = block.getEndEntryId() + 1;
            }
        }
        OffloadIndexBlock built = index.withDataObjectLength(length).build();
        MessageDigest ofIndex = MessageDigest.getInstance("SHA-256");
        try (InputStream stream = built.toStream()) {
            byte[] bytes = stream.readAllBytes();
            ofIndex.update(bytes);
            return length + " " + hex(data) + " " + bytes.length + " " + hex(ofIndex);
        }
    }

    private static String hex(MessageDigest digest) {
        return HexFormat.of().formatHex(digest.digest());
    }

    private static <T> T wait(Future<T> future) throws Exception {
        return future.get(PATIENCE_S, TimeUnit.SECONDS);
    }
}
