package segmentstore;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Room for the entries that BookKeeper's clients have, of all sessions. One may hold twice what is
 * left, as a dynamic threshold of a shared buffer has it (Choudhury and Hahne, 1998). So sessions
 * whose bookies hang leave some for the others, while they are fewer than the entries it fits.
 */
final class EntryRoom {
    private static final int HELD_PER_LEFT = 2;

    private final ReentrantLock lock = new ReentrantLock();
    private final List<Share> waiting = new ArrayList<>();
    private long left;

    EntryRoom(long bytes) {
        left = bytes;
    }

    Share share() {
        return new Share();
    }

    /** What one session holds. One thread takes, any gives back. */
    final class Share {
        private final Condition roomy = lock.newCondition();
        private long held;
        private long wanted;
        private boolean ended;

        /** Waits until there is room for an entry. */
        void take(int bytes) throws InterruptedException {
            lock.lock();
            try {
                wanted = bytes;
                if (!hasRoom()) {
                    await();
                }
                held += bytes;
                left -= bytes;
            } finally {
                lock.unlock();
            }
        }

        void giveBack(int bytes) {
            lock.lock();
            try {
                if (!ended) {
                    release(bytes);
                }
            } finally {
                lock.unlock();
            }
        }

        /** Gives back all. A client that is closed may never say what became of its entries. */
        void end() {
            lock.lock();
            try {
                ended = true;
                release(held);
            } finally {
                lock.unlock();
            }
        }

        private void await() throws InterruptedException {
            waiting.add(this);
            try {
                while (!hasRoom()) {
                    roomy.await();
                }
            } finally {
                waiting.remove(this);
            }
        }

        private void release(long bytes) {
            held -= bytes;
            left += bytes;
            for (Share other : waiting) {
                if (other.hasRoom()) {
                    other.roomy.signal();
                }
            }
        }

        /** The first entry of a session needs only some: smaller ones never pass it by. */
        private boolean hasRoom() {
            return held == 0 ? left > 0 : held + wanted <= HELD_PER_LEFT * (left - wanted);
        }
    }
}
