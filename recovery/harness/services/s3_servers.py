"""The S3 servers: S3Proxy (of the default test command), moto (polite and in memory), VersityGW
(where Go is).

What each is worth as a witness is in docs/testing-services.md: a server that takes a wrong checksum
proves nothing about checksums.
"""

from __future__ import annotations

import http.client
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import quote, urlencode

import boto3
import botocore.config
import botocore.exceptions

from recovery.harness.services.installing import (
    S3PROXY_SOURCES,
    UNVERIFIED,
    ServiceMissingError,
    java,
    s3proxy_libraries,
    versity_program,
)
from recovery.harness.services.server import HOST, StorageServer, python_module

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

REGION: Final = "us-east-1"
ACCESS_KEY: Final = "testing-key"
# Of servers on 127.0.0.1 that live as long as a test run.
SECRET_KEY: Final = "testing-secret"  # noqa: S105


def credentials() -> dict[str, str]:
    """Environment variables by which boto3 finds the servers' credentials, and no others of this
    machine.
    """
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


@cache
def _session() -> boto3.session.Session:
    """One for all plain clients: a session reads anew what there is of S3, for 0.1 s of a core."""
    return boto3.session.Session()


class S3Server(StorageServer):
    """A server that speaks S3 over plain HTTP, path style."""

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://{HOST}:{self.port}"

    def location(self, space: str, prefix: str = "") -> str:
        query = urlencode({"endpoint_url": self.url, "region": REGION})
        return f"s3://{space}/{quote(prefix)}?{query}" if prefix else f"s3://{space}?{query}"

    def client(self) -> S3Client:
        """A plain boto3 client: to check a bucket around the engine.

        The caller closes it.
        """
        return _session().client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=botocore.config.Config(
                s3={"addressing_style": "path"},
                connect_timeout=5,
                retries={"total_max_attempts": 2},
            ),
        )

    def make_bucket(self, name: str) -> None:
        """A bucket of this name, if there is none yet; again after a restart of a server that keeps
        nothing.
        """
        client = self.client()
        try:
            client.create_bucket(Bucket=name)
        except botocore.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in {
                "BucketAlreadyOwnedByYou",
                "BucketAlreadyExists",
            }:
                raise
        finally:
            client.close()

    def _answers(self, port: int) -> bool:
        connection = http.client.HTTPConnection(HOST, port, timeout=5.0)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True

    @abstractmethod
    def _command(self, port: int) -> Sequence[str]: ...


class S3Proxy(S3Server):
    """S3Proxy with its file system back end: strict about checksums, right about If-None-Match.

    Ready in 1 to 2 s.
    """

    name = "S3Proxy"
    keeps = True
    heap_mib: ClassVar[int] = 256

    def _command(self, port: int) -> Sequence[str]:
        libraries = s3proxy_libraries()
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        settings = {
            "s3proxy.endpoint": f"http://{HOST}:{port}",
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": ACCESS_KEY,
            "s3proxy.credential": SECRET_KEY,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(data),
            "jclouds.identity": "unused",
            "jclouds.credential": "unused",
        }
        properties = self.folder / "s3proxy.properties"
        properties.write_text(
            "".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8"
        )
        return [
            java(),
            "-Xms32m",
            f"-Xmx{self.heap_mib}m",
            "-XX:+UseSerialGC",
            # It process runs for seconds: the second compiler would cost more than it brings.
            "-XX:TieredStopAtLevel=1",
            *UNVERIFIED,
            f"-Dlogback.configurationFile={S3PROXY_SOURCES / 'logback.xml'}",
            "-cp",
            f"{libraries}/*",
            "org.gaul.s3proxy.Main",
            "--properties",
            str(properties),
        ]


class Moto(S3Server):
    """moto's server: in memory, right about conditions unless writers race, blind to checksums and
    secrets.
    """

    name = "moto"
    keeps = False

    def _command(self, port: int) -> Sequence[str]:
        return python_module("moto.server", "-H", HOST, "-p", str(port))


class VersityGateway(S3Server):
    """VersityGW on a folder: the cheapest, and the strictest of the three.

    Only where Go was there to build it.
    """

    name = "VersityGW"
    keeps = True

    def __init__(self, folder: Path, *, integrity_tags: bool = False) -> None:
        super().__init__(folder)
        self._options = ("--data-integrity-etag",) if integrity_tags else ()
        """CRCs instead of MD5s as entity tags: a third of the cost of a PUT, for benchmarks."""

    @staticmethod
    def available() -> bool:
        """Whether it can be started here."""
        return versity_program() is not None

    def _command(self, port: int) -> Sequence[str]:
        program = versity_program()
        if program is None:
            raise ServiceMissingError("VersityGW is built with Go, which was not found")
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        # Without --keep-alive it closes every connection after one request.
        return [
            str(program), "--quiet", "--keep-alive", "--port", f"{HOST}:{port}", "posix",
            *self._options, str(data),
        ]  # fmt: skip

    def _environment(self) -> Mapping[str, str]:
        return {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
