"""Keys and certificates of a cluster for tests, as PEM files: two authorities, and those they have
signed.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


def make_certificates(folder: Path) -> None:
    """The authority `ca` signed `server` and `client`, `other` signed `stranger`; all are for this
    machine.

    NAME.key is a key, NAME.crt its certificate, NAME.pem has both.
    """
    folder.mkdir()
    ca, other = _issue(folder, "ca", None), _issue(folder, "other", None)
    for name, authority in (("server", ca), ("client", ca), ("stranger", other)):
        _issue(folder, name, authority)


def _issue(
    folder: Path, name: str, authority: ec.EllipticCurvePrivateKey | None
) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = name if authority is None else "other" if name == "stranger" else "ca"
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
    )
    if authority is not None:
        # ZooKeeper's client in Java asks for the name of an address.
        here = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        builder = builder.add_extension(x509.SubjectAlternativeName(here), critical=False)
    pem = serialization.Encoding.PEM
    certificate = builder.sign(authority or key, hashes.SHA256()).public_bytes(pem)
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(secret)
    (folder / f"{name}.crt").write_bytes(certificate)
    (folder / f"{name}.pem").write_bytes(secret + certificate)
    return key


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
