"""Sftp: Debian's OpenSSH server as a private SFTP server, for one user and one key, without any
file of /etc.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

from recovery.harness.services.installing import ServiceMissingError, ssh_keygen, sshd
from recovery.harness.services.server import HOST, StorageServer

_SEPARATION_FOLDER = Path("/run/sshd")


class Sftp(StorageServer):
    """SFTP for the user who runs this, with a key made for it. Ready in less than 0.1 s."""

    name = "SFTP"
    keeps = True

    @property
    def key(self) -> Path:
        """The private key that opens it."""
        return self.folder / "client-key"

    @property
    def known_hosts(self) -> Path:
        """The file by which a client knows the server."""
        return self.folder / "known-hosts"

    @property
    def root(self) -> Path:
        """The folder below which `location` puts everything; it may be inspected directly."""
        return self.folder / "data"

    def location(self, space: str, prefix: str = "") -> str:
        path = quote(str(self.root.resolve() / space / prefix))
        # Nothing of the person who runs this: neither keys of an agent, nor of a home folder.
        query = urlencode(
            {
                "key_filename": str(self.key),
                "known_hosts": str(self.known_hosts),
                "look_for_keys": "false",
                "allow_agent": "false",
            }
        )
        return f"sftp://{quote(_user())}@{HOST}:{self.port}{path}?{query}"

    def _command(self, port: int) -> Sequence[str]:
        program = sshd()
        if os.geteuid() == 0:
            # Root's sshd insists on it; Debian's start script would have made it.
            _SEPARATION_FOLDER.mkdir(mode=0o755, exist_ok=True)
        self.root.mkdir(exist_ok=True)
        host_key = self.folder / "host-key"
        for key in (host_key, self.key):
            _make_key(key)
        public = host_key.with_suffix(".pub").read_text(encoding="utf-8")
        self.known_hosts.write_text(f"[{HOST}]:{port} {public}", encoding="utf-8")
        settings = {
            "Port": str(port),
            "ListenAddress": HOST,
            "HostKey": _quoted(host_key),
            "AuthorizedKeysFile": _quoted(self.key.with_suffix(".pub")),
            # The folder of a test is writable by the users it admits.
            "StrictModes": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "UsePAM": "no",
            "MaxStartups": "100",
            "Subsystem": "sftp internal-sftp",
            "PidFile": "none",
        }
        configuration = self.folder / "sshd_config"
        configuration.write_text(
            "".join(f"{key} {value}\n" for key, value in settings.items()), encoding="utf-8"
        )
        return [program, "-D", "-e", "-f", str(configuration)]


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _quoted(path: Path) -> str:
    return f'"{path.resolve()}"'


def _make_key(path: Path) -> None:
    if path.exists():
        return
    made = subprocess.run(
        [ssh_keygen(), "-q", "-t", "ed25519", "-N", "", "-f", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if made.returncode:
        raise ServiceMissingError(
            f"ssh-keygen made no key: {made.stderr.decode(errors='replace').strip()}"
        )
