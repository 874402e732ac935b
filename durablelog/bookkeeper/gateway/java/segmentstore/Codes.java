package segmentstore;

import java.util.concurrent.TimeoutException;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.meta.exceptions.MetadataException;
import org.apache.zookeeper.KeeperException;

/**
 * What went wrong, as BookKeeper's return code and one line of text. Nothing is thrown through
 * py4j.
 */
final class Codes {
    static final int OK = 0;
    static final int LEDGER_CLOSED = BKException.Code.LedgerClosedException;
    static final int CLIENT_CLOSED = BKException.Code.ClientClosedException;
    static final int TIMEOUT = BKException.Code.TimeoutException;
    static final int METADATA_SERVICE = BKException.Code.ZKException;
    static final int UNEXPECTED = BKException.Code.UnexpectedConditionException;

    /** Not BookKeeper's: a client, or a ledger, cannot be made with these settings. */
    static final int SETTING = -998;

    private Codes() {}

    /**
     * As `answer`, of a client that was to be made: what its settings are to blame for has a code
     * of its own.
     */
    static String answerOfConnecting(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (isOfSettings(cause)) {
                return answer(SETTING, cause.toString());
            }
        }
        return answer(failure);
    }

    /**
     * As `answer`, of a ledger that was to be made: a placement policy that these quorums do not
     * suit throws.
     */
    static String answerOfCreating(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof IllegalArgumentException) {
                return answer(SETTING, String.valueOf(cause.getMessage()));
            }
        }
        return answer(failure);
    }

    private static boolean isOfSettings(Throwable cause) {
        if (cause instanceof KeeperException refused) {
            return switch (refused.code()) {
                case AUTHFAILED, NOAUTH, INVALIDACL, SESSIONCLOSEDREQUIRESASLAUTH -> true;
                default -> false;
            };
        }
        if (cause instanceof java.io.IOException) {
            // A layout that is not the one asked for, or that this client does not know.
            return cause instanceof java.io.FileNotFoundException
                    || cause instanceof java.nio.file.NoSuchFileException
                    || (cause.getMessage() != null
                            && cause.getMessage().toLowerCase().contains("layout"));
        }
        return cause instanceof Admission.SettingException
                || cause instanceof org.apache.commons.configuration2.ex.ConfigurationException
                || cause instanceof org.apache.commons.configuration2.ex.ConversionException
                || cause instanceof ReflectiveOperationException
                || cause instanceof java.security.GeneralSecurityException
                || cause instanceof SecurityException
                || cause instanceof org.apache.bookkeeper.tls.SecurityException
                || cause instanceof IllegalArgumentException
                || cause instanceof ClassCastException
                || cause instanceof LinkageError;
    }

    static int of(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof org.apache.bookkeeper.client.api.BKException known) {
                return known.getCode();
            }
            if (cause instanceof TimeoutException) {
                return TIMEOUT;
            }
            // A client that connects says it in these words, inside an IOException.
            if (cause instanceof KeeperException || cause instanceof MetadataException) {
                return METADATA_SERVICE;
            }
        }
        return UNEXPECTED;
    }

    static String answer(Throwable failure) {
        Throwable last = failure;
        while (last.getCause() != null) {
            last = last.getCause();
        }
        return answer(of(failure), last.toString());
    }

    static String answer(int code, String detail) {
        return code + "\n" + detail.replace('\n', ' ').substring(0, Math.min(detail.length(), 500));
    }
}
