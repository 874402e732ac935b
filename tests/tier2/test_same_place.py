"""Whether two URLs name one place for objects."""

import pytest

from tier2.locations import is_same_place


@pytest.mark.parametrize(
    ("url", "other", "same"),
    [
        ("file:///a/b", "file://localhost/a/./b/", True),
        ("file:///a%20b", "file:///a b", True),
        ("file:///a/b", "file:///a", False),
        ("s3://bucket/p?region=eu-central-1", "s3://bucket/p/", True),
        ("s3://bucket/p", "s3://bucket/q", False),
        ("s3://bucket", "s3://bucket?endpoint_url=http://localhost:9000", False),
        ("memory://a", "memory://a", True),
        ("memory://a", "memory://b", False),
        ("gs://bucket/p/", "gs://bucket/p", True),
        ("gs://bucket/p", "file:///bucket/p", False),
    ],
)
def test_places(url: str, other: str, same: bool) -> None:
    assert is_same_place(url, other) is same
    assert is_same_place(other, url) is same
