"""TLS and users of a served store, and what its clients need to know of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from segmentstore.users import PasswordHash, user_line
from tests.store.certificates import make_certificates

ADMIN: Final = "admin"
READER: Final = "reader"
PERMISSIONS: Final = {ADMIN: "prn::*,READ_UPDATE", READER: "prn::*,READ"}
HOST_NAME: Final = "localhost"
"""The wheel takes no IP address where TLS is."""


class ClientSecurity:
    """A folder with certificates, a token key and users, made by the constructor."""

    def __init__(self, folder: Path) -> None:
        make_certificates(folder)
        self._folder = folder
        lines = (
            user_line(name, PasswordHash.of(self.password(name), name.encode()), permissions)
            for name, permissions in PERMISSIONS.items()
        )
        (folder / "users").write_text("\n".join(lines), encoding="utf-8")
        (folder / "token.key").write_text("a token key of tests that has 32 bytes at least")

    def password(self, user: str) -> str:
        return f"the password of {user}"

    def settings(self) -> Mapping[str, str]:
        """Of the store."""
        return {
            "tls_certificate_file": str(self._folder / "server.crt"),
            "tls_key_file": str(self._folder / "server.key"),
            "token_key_file": str(self._folder / "token.key"),
            "users_file": str(self._folder / "users"),
        }

    def environment(self, user: str = ADMIN, password: str | None = None) -> Mapping[str, str]:
        """Of a client's process: the names that the wheel reads; our Java program does, too."""
        return {
            "pravega_client_tls_cert_path": str(self._folder / "ca.crt"),
            "pravega_client_auth_method": "Basic",
            "pravega_client_auth_username": user,
            "pravega_client_auth_password": self.password(user) if password is None else password,
        }
