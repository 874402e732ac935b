package segmentstore;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.stream.Stream;
import sun.misc.Signal;
import sun.misc.SignalHandler;

/**
 * This process ends with its parent, whatever happens to that: standard input ends, or another
 * becomes the parent.
 */
final class Parent {
    /**
     * A terminal and a service manager send these to all processes that belong together. The parent
     * closes its stores then, and needs this one for that; it ends afterwards.
     */
    private static final String[] SIGNALS = {"INT", "TERM", "HUP"};

    private Parent() {}

    static void endWith(long parent, Path folder) {
        for (String name : SIGNALS) {
            try {
                Signal.handle(new Signal(name), SignalHandler.SIG_IGN);
            } catch (IllegalArgumentException given) {
                Gateway.LOG.debug("Java was started with -Xrs", given);
            }
        }
        start("parent-input", () -> {
            try {
                while (System.in.read() >= 0) {
                    // What is said does not matter.
                }
            } catch (IOException broken) {
                Gateway.LOG.debug("standard input", broken);
            }
            end(folder);
        });
        if (parent != 0) {
            // A forked child of the parent may hold the other end of that pipe for ever.
            start("parent-process", () -> {
                while (ProcessHandle.current().parent().map(ProcessHandle::pid).orElse(parent)
                        == parent) {
                    try {
                        Thread.sleep(1000);
                    } catch (InterruptedException ended) {
                        return;
                    }
                }
                end(folder);
            });
        }
    }

    private static void end(Path folder) {
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(file);
            }
        } catch (IOException | UncheckedIOException failure) {
            Gateway.LOG.debug("the folder", failure);
        }
        // Not exit(): nothing of what is under way may hold this up.
        Runtime.getRuntime().halt(0);
    }

    private static void start(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }
}
