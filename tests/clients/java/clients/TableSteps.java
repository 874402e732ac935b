package clients;

import static clients.World.check;
import static clients.World.equal;

import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.ConditionalTableUpdateException;
import io.pravega.client.tables.Insert;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.KeyValueTableIterator;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.Remove;
import io.pravega.client.tables.TableEntry;
import io.pravega.client.tables.TableKey;
import io.pravega.client.tables.TableModification;
import io.pravega.client.tables.Version;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;

/** Key-value tables: conditions, and iteration over several partitions. */
final class TableSteps {
    private static final int PRIMARY = 4;
    private static final int SECONDARY = 8;
    private static final int ROWS = 300;

    private TableSteps() {}

    private interface Use {
        void on(KeyValueTable table) throws Exception;
    }

    private static void withTable(World world, int partitions, Use use) throws Exception {
        KeyValueTableConfiguration configuration = KeyValueTableConfiguration.builder()
                .partitionCount(partitions).primaryKeyLength(PRIMARY)
                .secondaryKeyLength(SECONDARY).build();
        try (KeyValueTableManager manager = KeyValueTableManager.create(world.config)) {
            check(manager.createKeyValueTable(world.scope, "table", configuration), "new");
            check(!manager.createKeyValueTable(world.scope, "table", configuration), "once");
            try (KeyValueTableFactory tables =
                            KeyValueTableFactory.withScope(world.scope, world.config);
                    KeyValueTable table = tables.forKeyValueTable(
                            "table", KeyValueTableClientConfiguration.builder().build())) {
                use.on(table);
            }
            equal("table", manager.listKeyValueTables(world.scope).next()
                    .getKeyValueTableName(), "listed");
            check(manager.deleteKeyValueTable(world.scope, "table"), "deleted");
            check(!manager.listKeyValueTables(world.scope).hasNext(), "none is left");
        }
    }

    private static ByteBuffer bytes(String text) {
        return ByteBuffer.wrap(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(ByteBuffer bytes) {
        return StandardCharsets.UTF_8.decode(bytes.duplicate()).toString();
    }

    private static TableKey key(int family, int number) {
        return new TableKey(
                bytes(String.format("%04d", family)), bytes(String.format("%08d", number)));
    }

    private static String value(KeyValueTable table, TableKey key) throws Exception {
        TableEntry entry = table.get(key).get();
        return entry == null ? null : text(entry.getValue());
    }

    private static void refused(KeyValueTable table, TableModification modification)
            throws Exception {
        try {
            table.update(modification).get();
        } catch (ExecutionException error) {
            check(error.getCause() instanceof ConditionalTableUpdateException,
                    "a condition is what fails, not " + error.getCause());
            return;
        }
        throw new AssertionError(modification + " was done");
    }

    static void table(World world) throws Exception {
        withTable(world, 2, table -> {
            TableKey one = key(1, 1);
            TableKey two = key(1, 2);
            Version inserted = table.update(new Insert(one, bytes("a"))).get();
            refused(table, new Insert(one, bytes("b")));
            refused(table, new Put(two, bytes("b"), inserted));
            Version changed = table.update(new Put(one, bytes("c"), inserted)).get();
            refused(table, new Put(one, bytes("d"), inserted));
            equal("c", value(table, one), "the value");
            equal(changed, table.get(one).get().getVersion(), "its version");
            batch(table, one, two, changed);
            refused(table, new Remove(one, changed));
            table.update(new Remove(one)).get();
            table.update(new Remove(one)).get();
            equal(null, value(table, one), "the value of a removed key");
            check(!table.exists(one).get(), "a removed key is absent");
            // A key that comes again has a version of its own.
            Version again = table.update(new Insert(one, bytes(""))).get();
            check(!again.equals(inserted) && !again.equals(changed), "versions never come back");
            equal("", value(table, one), "an empty value");
        });
    }

    /** All or nothing, of keys of one family. */
    private static void batch(KeyValueTable table, TableKey one, TableKey two, Version known)
            throws Exception {
        try {
            table.update(List.of(
                    new Put(one, bytes("e")), new Put(two, bytes("f"), known))).get();
            throw new AssertionError("half a batch was done");
        } catch (ExecutionException error) {
            check(error.getCause() instanceof ConditionalTableUpdateException, "a condition");
        }
        equal("c", value(table, one), "the value, as before");
        List<Version> versions = table.update(List.of(
                new Put(one, bytes("g"), known), new Insert(two, bytes("h")))).get();
        List<TableEntry> found = table.getAll(List.of(two, key(2, 7), one)).get();
        equal("h", text(found.get(0).getValue()), "the second key's value");
        equal(null, found.get(1), "the entry of an absent key");
        equal(versions.get(0), found.get(2).getVersion(), "the first key's version");
    }

    /** More than a page, in several partitions and families. */
    static void pages(World world) throws Exception {
        withTable(world, 3, table -> {
            Set<String> written = new TreeSet<>();
            for (int family = 0; family < 3; family++) {
                List<TableModification> rows = new ArrayList<>();
                for (int number = 0; number < ROWS / 3; number++) {
                    rows.add(new Put(key(family, number), bytes("value" + number)));
                    written.add(name(key(family, number)));
                }
                table.update(rows).get();
            }
            equal(written, names(table.iterator().maxIterationSize(20).all()), "all keys");
            Set<String> middle = new TreeSet<>();
            for (int number = 10; number <= 60; number++) {
                middle.add(name(key(1, number)));
            }
            equal(middle, names(table.iterator().maxIterationSize(7).forPrimaryKey(
                    bytes("0001"), bytes("00000010"), bytes("00000060"))), "a range of keys");
            Set<String> prefixed = new TreeSet<>();
            for (int number = 50; number < 60; number++) {
                prefixed.add(name(key(2, number)));
            }
            equal(prefixed, names(table.iterator().maxIterationSize(4).forPrimaryKey(
                    bytes("0002"), bytes("0000005"))), "keys with a prefix");
        });
    }

    private static String name(TableKey key) {
        return text(key.getPrimaryKey()) + "/" + text(key.getSecondaryKey());
    }

    private static Set<String> names(KeyValueTableIterator iterator) throws Exception {
        Set<String> found = new TreeSet<>();
        var entries = iterator.entries();
        for (var page = entries.getNext().get(); page != null; page = entries.getNext().get()) {
            for (TableEntry entry : page.getItems()) {
                check(found.add(name(entry.getKey())), "each key once");
                equal("value" + Integer.parseInt(text(entry.getKey().getSecondaryKey())),
                        text(entry.getValue()), "its value");
            }
        }
        return found;
    }
}
