"""TLS and users of a served store, and what its clients need to know of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from segmentstore.users import PasswordHash, user_line
from tests.store.certificates import make_certificates

ADMIN: Final = "admin"
READER: Final = "reader"
PERMISSIONS: Final = {ADMIN: "prn::*,READ_UPDATE", READER: "prn::*,READ"}
HOST_NAME: Final = "localhost"
"""The wheel takes no IP address where TLS is."""
TOKEN_KEY: Final = "a token key of tests that has 32 bytes at least"
_ROUNDS: Final = 5_000
_HASH_BYTES: Final = 64
"""As Pravega's StrongPasswordProcessor has them."""


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
        (folder / "token.key").write_text(TOKEN_KEY)

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

    def controller_settings(self) -> Mapping[str, str]:
        """Of Pravega's Controller, with the same certificate, token key and users."""
        accounts = (
            f"{name}:{self._pravega_hash(name)}:{permissions}"
            for name, permissions in PERMISSIONS.items()
        )
        (self._folder / "accounts").write_text("\n".join(accounts), encoding="utf-8")
        self._make_key_store()
        files = {
            "pwdAuthHandler.accountsDb": "accounts",
            "tls.server.certificate": "server.crt",
            "tls.server.privateKey": "server.key",
            "tls.trustStore": "ca.crt",
            # Its REST server has TLS with the others, and wants Java's kind of file.
            "tls.server.keyStore": "server.p12",
            "tls.server.keyStore.pwd": "server.p12.password",
        }
        settings = {
            f"security.{name}.location": str(self._folder / file) for name, file in files.items()
        }
        return {
            **settings,
            "security.auth.enable": "true",
            "security.auth.delegationToken.signingKey.basis": TOKEN_KEY,
            "security.tls.enable": "true",
            "segmentstore.connect.channel.tls": "true",
        }

    def _pravega_hash(self, user: str) -> str:
        salt, password = user.encode(), self.password(user).encode()
        key = hashlib.pbkdf2_hmac("sha256", password, salt, _ROUNDS, _HASH_BYTES)
        return f"{_ROUNDS}:{salt.hex()}:{key.hex()}".encode().hex()

    def _make_key_store(self) -> None:
        password = b"a password of a file"
        key = serialization.load_pem_private_key((self._folder / "server.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        certificate = x509.load_pem_x509_certificate((self._folder / "server.crt").read_bytes())
        content = pkcs12.serialize_key_and_certificates(
            b"server", key, certificate, None, serialization.BestAvailableEncryption(password)
        )
        (self._folder / "server.p12").write_bytes(content)
        (self._folder / "server.p12.password").write_bytes(password)

    def environment(self, user: str = ADMIN, password: str | None = None) -> Mapping[str, str]:
        """Of a client's process: the names that the wheel reads; our Java program does, too."""
        return {
            "pravega_client_tls_cert_path": str(self._folder / "ca.crt"),
            "pravega_client_auth_method": "Basic",
            "pravega_client_auth_username": user,
            "pravega_client_auth_password": self.password(user) if password is None else password,
        }
