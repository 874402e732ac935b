"""How BookKeeper's jars and the gateway's classes get onto this machine, and where they are."""

from __future__ import annotations

from durablelog.bookkeeper.installation.class_archives import (
    JavaProgram,
    archive_options,
    archives_folder,
    programs_without_archive,
)
from durablelog.bookkeeper.installation.gateway_classes import (
    SOURCES_FOLDER,
    gateway_classpath,
    gateway_jar,
)
from durablelog.bookkeeper.installation.jars import (
    FOLDER_VARIABLE,
    cluster_classpath,
    damaged_jars,
    install,
    installation_folder,
    jars_folder,
)
from durablelog.bookkeeper.installation.programs import (
    INSTALL_COMMAND,
    JAVA_ENVIRONMENT,
    JAVA_VERSION_MIN,
    LATE_OPTIMIZATION,
    GatewayMissingError,
    java,
    java_version,
    javac,
    maven,
)

__all__ = [
    "FOLDER_VARIABLE",
    "INSTALL_COMMAND",
    "JAVA_ENVIRONMENT",
    "JAVA_VERSION_MIN",
    "LATE_OPTIMIZATION",
    "SOURCES_FOLDER",
    "GatewayMissingError",
    "JavaProgram",
    "archive_options",
    "archives_folder",
    "cluster_classpath",
    "damaged_jars",
    "gateway_classpath",
    "gateway_jar",
    "install",
    "installation_folder",
    "jars_folder",
    "java",
    "java_version",
    "javac",
    "maven",
    "programs_without_archive",
]
