"""Garbage of a store on a real S3 server: orphans, unfinished uploads, markers, metrics."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from recovery.harness.services.s3_servers import Moto, credentials
from recovery.harness.services.shared import shared_server
from tests.store.harness import open_lazy, read_all, read_store_id, run
from tier2.object_names import object_name, parse_object_name
from tier2.unique_ids import new_tagged_id, store_tag

BUCKET = "garbage"
RNG = random.Random(3)


def test_orphans_and_unfinished_uploads_of_a_dead_owner_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)
    server = shared_server(Moto)
    server.make_bucket(BUCKET)
    client = server.client()
    prefix = tmp_path.name
    url = server.location(BUCKET, prefix)

    def listed() -> set[str]:
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix + "/").get("Contents", [])
        names = {entry["Key"].removeprefix(prefix + "/") for entry in found}
        return {name for name in names if parse_object_name(name) is not None}

    def unfinished() -> list[Any]:
        return list(
            client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix + "/").get("Uploads", [])
        )

    async def main() -> None:
        quiet: dict[str, Any] = {"orphan_sweep_interval_s": 0.0, "deletion_lag_s": 0.0}
        async with open_lazy(tmp_path / "s", tier2=url, **quiet) as store:
            await store.create_segment("a")
            await store.append("a", b"kept" * 50)
            await store.flush()
        live = listed()
        tag = store_tag(read_store_id(tmp_path / "s"))
        orphan, upload, foreign = (
            object_name(number, 1, "flush", new_tagged_id(tag, RNG)) for number in (0, 0, 9)
        )
        client.put_object(Bucket=BUCKET, Key=f"{prefix}/{orphan}", Body=b"x" * 10)
        client.create_multipart_upload(Bucket=BUCKET, Key=f"{prefix}/{upload}")
        client.create_multipart_upload(Bucket=BUCKET, Key=f"{prefix}/{foreign}")
        async with open_lazy(tmp_path / "s", **quiet) as store:
            report = await store.collect_garbage()
            assert not report.problems
            assert [item.name for item in report.items if item.state == "aborted upload"] == [
                upload
            ]
            await store.collect_garbage()
            assert listed() == live
            assert [entry["Key"] for entry in unfinished()] == [f"{prefix}/{foreign}"]
            assert await read_all(store, "a") == b"kept" * 50
            samples = {
                sample.labels["operation"]: sample.value
                for family in text_string_to_metric_families(store.metrics_text().decode())
                for sample in family.samples
                if sample.name == "segmentstore_tier2_requests_total"
            }

            assert samples["abort_upload"] >= 1
            assert samples["delete"] >= 1
            assert samples["list_uploads"] >= 1

    run(main())
