"""Servers that speak like the clouds beside Amazon's: fake-gcs-server for gs://, azurite for
abfs://.

What each is worth as a witness is in docs/testing-services.md. The fsspec packages for them (gcsfs,
adlfs) find credentials and the server's place in environment variables, which `environment` gives.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from recovery.harness.services.installing import azurite_program, fake_gcs_program, node
from recovery.harness.services.server import HOST, StorageServer

AZURE_ACCOUNT: Final = "devstoreaccount1"
AZURE_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Azurite's own, the same everywhere: its documentation has both."""
_ANSWER_S: Final = 5.0


class CloudServer(StorageServer):
    """A server over plain HTTP."""

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://{HOST}:{self.port}"

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Variables by which its fsspec package finds it, and no credentials of this machine."""


class FakeGcs(CloudServer):
    """fake-gcs-server, on a folder. Ready in 0.1 s. Only where Go was there to build it."""

    name = "fake-gcs-server"
    keeps = True

    @staticmethod
    def available() -> bool:
        """Whether it can be started here."""
        return fake_gcs_program() is not None

    def location(self, space: str, prefix: str = "") -> str:
        return f"gs://{space}/{prefix}"

    def environment(self) -> Mapping[str, str]:
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "FSSPEC_GS_TOKEN": "anon",
            # Else each first use waits a minute for a gRPC service that is Google's alone.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def make_bucket(self, name: str) -> None:
        """A bucket of this name, if there is none yet."""
        request = urllib.request.Request(  # noqa: S310 - of 127.0.0.1
            f"{self.url}/storage/v1/b?project=test",
            json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            urllib.request.urlopen(request, timeout=_ANSWER_S).close()  # noqa: S310
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def _command(self, port: int) -> Sequence[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        place = f"{HOST}:{port}"
        return [
            str(fake_gcs_program()), "-scheme", "http", "-host", HOST, "-port", str(port),
            "-backend", "filesystem",
            "-filesystem-root", str(data), "-external-url", f"http://{place}", "-public-host",
            place,
        ]  # fmt: skip


class Azurite(CloudServer):
    """azurite's blob service, on a folder. Ready in 2 s."""

    name = "azurite"
    keeps = True

    def location(self, space: str, prefix: str = "") -> str:
        return f"abfs://{space}/{prefix}"

    def environment(self) -> Mapping[str, str]:
        return {
            "AZURE_STORAGE_CONNECTION_STRING": (
                f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
                f"BlobEndpoint={self.url}/{AZURE_ACCOUNT};"
            )
        }

    def make_container(self, name: str) -> None:
        """A container of this name, if there is none yet."""
        # Not at the top: it is large, and of the tests alone.
        from azure.core.exceptions import ResourceExistsError  # noqa: PLC0415
        from azure.storage.blob import BlobServiceClient  # noqa: PLC0415

        said = self.environment()["AZURE_STORAGE_CONNECTION_STRING"]
        with BlobServiceClient.from_connection_string(said) as client:
            try:
                client.create_container(name)
            except ResourceExistsError:
                pass

    def _command(self, port: int) -> Sequence[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        return [
            node(), str(azurite_program()), "--blobHost", HOST, "--blobPort", str(port),
            "--location", str(data),
            "--skipApiVersionCheck", "--disableTelemetry", "--silent",
        ]  # fmt: skip
