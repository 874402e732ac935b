"""A server that answers listings alone, as S3 does, with pages it made before: what listing costs
is then the client's.

Started as `python -m bench.spark_list_server SHARDS KEYS`; prints its port and serves until it is
killed. Pages of 1,000 keys for the prefixes `00/`, `01/`, ...; whatever else is asked for is empty.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PAGE_KEYS = 1000
BUCKET = "bench"
_HOST = "127.0.0.1"
_EMPTY = "<KeyCount>0</KeyCount><IsTruncated>false</IsTruncated>"
_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult '
    'xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
)


@contextmanager
def list_server(shards: int, keys: int) -> Iterator[str]:
    """Its endpoint; `keys` in each of the first `shards`."""
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", __name__, str(shards), str(keys)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as server:
        assert server.stdout is not None
        try:
            yield f"http://{_HOST}:{int(server.stdout.readline())}"
        finally:
            server.kill()


def prefix_of(shard: int) -> str:
    """What the keys of a shard begin with."""
    return f"{shard:02x}/"


class Pages:
    """Listings by prefix and page, made once."""

    def __init__(self, shards: int, keys: int) -> None:
        self._keys = keys
        self._pages = {
            prefix_of(shard): [
                _page(shard, first, min(PAGE_KEYS, keys - first), last=first + PAGE_KEYS >= keys)
                for first in range(0, keys, PAGE_KEYS)
            ]
            for shard in range(shards)
        }

    def answer(self, target: str) -> bytes:
        """The body for a request's target; the continuation token is the number of the page."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        prefix = query.get("prefix", "")
        pages = self._pages.get(prefix, [])
        if pages and (after := query.get("start-after", "")):
            body = self._behind(int(prefix.rstrip("/"), 16), after)
        else:
            body = pages[int(query.get("continuation-token", 0))] if pages else _EMPTY
        # boto3 asks for encoded keys, and has to know that it got them.
        encoding = "<EncodingType>url</EncodingType>" if query.get("encoding-type") == "url" else ""
        head = (
            f"<Name>{BUCKET}</Name><Prefix>{prefix}</Prefix>"
            f"<MaxKeys>{PAGE_KEYS}</MaxKeys>{encoding}"
        )
        return f"{_HEAD}{head}{body}</ListBucketResult>".encode()

    def _behind(self, shard: int, key: str) -> str:
        """What is left of the page that has the key."""
        first = int(key.rpartition("-")[2][:8], 16) + 1
        end = min(self._keys, (first // PAGE_KEYS + 1) * PAGE_KEYS)
        return _page(shard, first, end - first, last=end >= self._keys) if first < end else _EMPTY


def _page(shard: int, first: int, count: int, *, last: bool) -> str:
    contents = "".join(
        f"<Contents><Key>{_key(shard, number)}</Key>"
        f"<LastModified>2026-11-01T10:00:{number % 60:02d}.000Z</LastModified>"
        f"<ETag>&quot;{number:032x}&quot;</ETag><Size>{67_108_864 + number}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for number in range(first, first + count)
    )
    more = (
        "" if last else f"<NextContinuationToken>{first // PAGE_KEYS + 1}</NextContinuationToken>"
    )
    truncated = f"<IsTruncated>{str(not last).lower()}</IsTruncated>"
    return f"<KeyCount>{count}</KeyCount>{truncated}{more}{contents}"


def _key(shard: int, number: int) -> str:
    """As long as ours are, and sorted by number."""
    digest = sha256(number.to_bytes(8, "big")).hexdigest()[:24]
    return f"{prefix_of(shard)}00000003/{7:016x}/flush-{number:08x}{digest}"


async def _serve(pages: Pages) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                body = pages.answer(request.split(b" ", 2)[1].decode())
                head = (
                    "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: "
                    f"{len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, _HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Pages(int(sys.argv[1]), int(sys.argv[2]))))
