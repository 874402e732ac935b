package segmentstore;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.WatchedBookKeeper;
import org.apache.bookkeeper.net.BookieId;

/**
 * Whether bookies let a new client in. It would get that with its first entries, and call them
 * absent.
 */
final class Admission {
    /** So many are asked, at the same time. */
    private static final int ASKED_MAX = 8;
    /** Any question does; this is how much room it has. */
    private static final long FREE_ROOM = 2;

    private record Answer(BookieId id, int code) {}

    private Admission() {}

    /**
     * Throws SettingException if all of them refuse the client. Returns with the first that admits
     * it. Waits for so many milliseconds: if some refuse it and of others nothing is known then,
     * TimeoutException, for one bookie may be set up otherwise than the rest; returns if none
     * refuses it.
     */
    static void check(WatchedBookKeeper client, Refusals refusals, long millis) throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        List<BookieId> asked =
                new ArrayList<>(client.registered().get(millis, TimeUnit.MILLISECONDS));
        Collections.shuffle(asked);
        asked = asked.subList(0, Math.min(asked.size(), ASKED_MAX));
        LinkedBlockingQueue<Answer> answers = new LinkedBlockingQueue<>();
        for (BookieId id : asked) {
            client.direct().getBookieInfo(id, FREE_ROOM,
                    (code, info, context) -> answers.add(new Answer(id, code)), null);
        }
        StringBuilder refused = new StringBuilder();
        int unknown = asked.size();
        for (int count = 0; count < asked.size(); count++) {
            Answer answer = answers.poll(end - System.nanoTime(), TimeUnit.NANOSECONDS);
            if (answer == null) {
                break;
            }
            if (answer.code() == BKException.Code.OK) {
                return;
            }
            String words = refusals.words(client, answer.id(), answer.code());
            if (words != null) {
                unknown--;
                refused.append(refused.isEmpty() ? "bookie " : "; bookie ")
                        .append(answer.id()).append(": ").append(words);
            }
        }
        if (!refused.isEmpty() && unknown > 0) {
            throw new TimeoutException(refused + "; of " + unknown + " more nothing is known");
        }
        if (!refused.isEmpty()) {
            throw new SettingException(refused.toString());
        }
    }

    /** The settings are to blame, as its text says. */
    static final class SettingException extends Exception {
        SettingException(String text) {
            super(text);
        }

        @Override
        public String toString() {
            return getMessage();
        }
    }
}
