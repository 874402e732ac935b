"""In an environment with the extras: the command line, every module of the wheel whose extra is
there, and the adapters load.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import socket
import subprocess
import sys

import segmentstore
from segmentstore.contracts.runtime import Runtime
from tier2.locations import open_object_storage
from tier2.s3.s3_client import make_client
from tier2.s3.s3_location import parse_s3_url

COMMAND = os.path.join(os.path.dirname(sys.executable), "segmentstore")
HARNESS = importlib.util.find_spec("greenlet") is not None
SPARK = importlib.util.find_spec("pyspark") is not None
MODULES_MIN = 150 + 70 * HARNESS


def shell(*arguments: str, given: bytes = b"", code: int = 0) -> bytes:
    """Run a command of ours; its standard output."""
    done = subprocess.run([COMMAND, *arguments], input=given, capture_output=True, check=False)
    assert done.returncode == code, done
    return done.stdout + (done.stderr if code else b"")


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def load_everything() -> int:
    """Import every module of the wheel; how many."""
    count = 0
    for file in importlib.metadata.files("segmentstore") or ():
        parts = file.with_suffix("").parts
        if file.suffix != ".py" or parts[-1] == "__main__":
            continue
        if not SPARK and "spark" in parts:
            continue
        if not HARNESS and (
            {"harness", "catalog"} & set(parts) or parts[-1].startswith("crashtest_")
        ):
            continue
        importlib.import_module(".".join(parts).removesuffix(".__init__"))
        count += 1
    return count


def main() -> None:
    """Everything."""
    version = importlib.metadata.version("segmentstore")
    assert segmentstore.__version__ == version
    assert segmentstore.__file__.startswith(sys.prefix), "it is the wheel that is tried"
    assert shell("--version").split() == [b"segmentstore", version.encode()]
    shell("append", "by-command", "a", given=b"one\ntwo\n")
    assert shell("cat", "by-command", "a") == b"one\ntwo\n"
    shell("verify", "by-command")
    assert b"checkout" in shell("bench", code=1)
    if HARNESS:
        shell("crashtest", "--runs", "2", "--jobs", "1", "--seed", "1")
        shell("catalog", "export", "by-command")
        shell("catalog", "ls", "by-command")
    else:
        assert b"segmentstore[harness]" in shell("crashtest", code=2)
        assert b"segmentstore[arrow]" in shell("catalog", "export", "by-command", code=2)
    if not SPARK:
        assert b"segmentstore[spark]" in shell("spark", "reconcile", "by-command", code=2)
    with segmentstore.blocking.open("by-command") as store:
        assert b"segmentstore_up 1" in store.metrics_text()
    with segmentstore.blocking.open(
        "served", wire_port=free_port(), controller_port=free_port()
    ) as store:
        assert store.stats()["health"] == []
    os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"] = "id", "key"
    location = parse_s3_url("s3://bucket/prefix?region=eu-central-1")
    client = make_client(location)
    assert client.meta.region_name == "eu-central-1"
    client.close()
    open_object_storage("sftp://host/folder", Runtime())
    open_object_storage("s3://bucket/prefix", Runtime())
    assert load_everything() > MODULES_MIN


main()
