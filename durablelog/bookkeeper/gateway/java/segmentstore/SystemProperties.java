package segmentstore;

import javax.security.auth.login.Configuration;

/** Properties of this Java process that a store asks for: all stores of a gateway have the same. */
final class SystemProperties {
    private static final String LOGINS = "java.security.auth.login.config";

    private SystemProperties() {}

    /**
     * A line "key=value" each. Throws IllegalArgumentException for one that another store, or Java
     * itself, has set otherwise.
     */
    static synchronized void set(String lines) {
        lines.lines().forEach(line -> {
            String[] pair = line.split("=", 2);
            String there = System.getProperty(pair[0]);
            if (there != null && !there.equals(pair[1])) {
                throw new IllegalArgumentException(
                        pair[0] + " is set to another value in this gateway,"
                                + " which other stores use too");
            }
            System.setProperty(pair[0], pair[1]);
            if (there == null && pair[0].equals(LOGINS)) {
                // A class that read it before there was one keeps that.
                Configuration.setConfiguration(null);
            }
        });
    }
}
