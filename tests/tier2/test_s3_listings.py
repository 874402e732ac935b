"""Listings that are none, that have no order, and that say more without saying where: an error
rather than a listing that leaves objects out or never ends.
"""

from __future__ import annotations

import pytest

from recovery.harness.services.s3_servers import credentials
from tests.contracts.object_storage_contract import unique_id
from tests.tier2.s3_transport import S3World, answers, run_case
from tier2.object_storage import StorageUnavailableError
from tier2.s3.s3_calls import Level, list_level

NAMES = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in credentials().items():
        monkeypatch.setenv(key, value)


def listing(*names: str, more: bool = False, token: str = "", below: str = "some/prefix/") -> bytes:
    contents = "".join(
        f"<Contents><Key>{below}{name}</Key><Size>1</Size>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for name in names
    )
    following = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return (
        f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{contents}{following}"
        "</ListBucketResult>"
    ).encode()


async def listed(world: S3World, *, put: bool = True) -> list[str]:
    if put:
        for number, name in enumerate(NAMES):
            await world.storage.put(name, [b"1"], unique_id(number))
    return [each.name async for page in world.storage.list() for each in page]


@pytest.mark.parametrize(
    ("pages", "kind"),
    [
        ([b""], "odd-reply"),
        ([b"<html><body>Please log in</body></html>"], "odd-reply"),
        ([listing("b", "a", more=True)], "odd-listing"),
        ([listing("a", "a")], "odd-listing"),
        ([listing("a", below="some/prefixes/")], "odd-listing"),
        ([listing("a", "b", more=True), listing("a", "b", more=True)], "odd-listing"),
        ([listing(more=True)], "odd-listing"),
        ([listing(more=True, token="x"), listing(more=True, token="x")], "odd-listing"),
    ],
)
def test_a_listing_that_would_leave_out_objects_or_never_end_is_an_error(
    pages: list[bytes], kind: str
) -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("list", *(answers(200, page) for page in pages))
        with pytest.raises(StorageUnavailableError) as caught:
            await listed(world)
        assert caught.value.kind == kind
        assert await listed(world, put=False) == NAMES

    run_case(case)


def test_a_page_that_names_the_next_one_is_not_the_last() -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("list", answers(200, listing("a", more=False, token="x")))
        assert await listed(world) == NAMES
        # A store that names one behind each page ends as others do.
        pages = [listing("a", "b", "c", token="x"), listing(token="y")]
        world.transport.fail("list", *(answers(200, page) for page in pages))
        assert await listed(world, put=False) == NAMES

    run_case(case)


def level(world: S3World, token: str = "", behind: str = "") -> Level:
    client = world.storage._requests._client
    return client.call("", "ListObjectsV2", list_level(world.bucket, "some/prefix/", token, behind))


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        (b"<html><body>Please log in</body></html>", "odd-reply"),
        (listing("c", below="some/prefixes/"), "odd-listing"),
        (listing("a"), "odd-listing"),
        (listing("b"), "odd-listing"),
        (listing("c", more=True), "odd-listing"),
        (listing("c", more=True, token="x"), "odd-listing"),
    ],
)
def test_a_page_of_one_level_that_is_none_or_does_not_follow_is_an_error(
    page: bytes, kind: str
) -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("list", answers(200, page))
        with pytest.raises(StorageUnavailableError) as caught:
            level(world, "x", "some/prefix/b")
        assert caught.value.kind == kind

    run_case(case)


def test_the_pages_of_one_level_follow_each_other() -> None:
    async def case(world: S3World) -> None:
        for number, name in enumerate(("a", "b/x", "c")):
            await world.storage.put(name, [b"1"], unique_id(number))
        found = level(world)
        assert [key for key, _, _ in found.objects] == ["some/prefix/a", "some/prefix/c"]
        assert found.prefixes == ["some/prefix/b/"]
        assert (found.token, found.last) == ("", "some/prefix/c")
        world.transport.fail("list", answers(200, listing("d", more=True, token="y")))
        following = level(world, "x", found.last)
        assert (following.token, following.last) == ("y", "some/prefix/d")
        world.transport.fail("list", answers(200, listing("d", token="y")), answers(200, listing()))
        assert level(world, "x", found.last).token == "y"
        assert not level(world, "y", "some/prefix/d").token

    run_case(case)


def uploads(*keys: str, following: tuple[str, str]) -> bytes:
    shown = "".join(
        f"<Upload><Key>some/prefix/{key}</Key><UploadId>{number}</UploadId>"
        "<Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>"
        for number, key in enumerate(keys)
    )
    key, upload_id = following
    return (
        f"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>{key}"
        f"</NextKeyMarker><NextUploadIdMarker>{upload_id}</NextUploadIdMarker>{shown}"
        "</ListMultipartUploadsResult>"
    ).encode()


@pytest.mark.parametrize(
    "pages",
    [
        [uploads(following=("", ""))],
        [uploads("a", "b", "c", following=("c", "2"))] * 2,
        [uploads("a", "a", following=("some/prefix/a", "1"))] * 2,
        [uploads("b", "a", "c", following=("c", "2"))],
    ],
)
def test_a_listing_of_uploads_that_would_never_end_is_an_error(pages: list[bytes]) -> None:
    async def case(world: S3World) -> None:
        world.transport.fail("list_uploads", *(answers(200, page) for page in pages))
        with pytest.raises(StorageUnavailableError) as caught:
            await world.storage.list_unfinished()
        assert caught.value.kind == "odd-listing"
        assert list(await world.storage.list_unfinished()) == []

    run_case(case)


def test_pages_without_a_key_do_not_end_a_listing() -> None:
    async def case(world: S3World) -> None:
        empty = [listing(more=True, token=token) for token in "xy"]
        pages = (*empty, listing("a", more=True), *empty, listing("b"))
        world.transport.fail("list", *(answers(200, page) for page in pages))
        assert await listed(world) == ["a", "b"]
        assert world.transport.sent["list"] == len(pages)

    run_case(case)
