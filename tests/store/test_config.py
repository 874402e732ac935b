"""The configuration of a store: nested by part, set by flat names, each default in one place."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from readindex.config import ReadIndexConfig
from segmentstore.config import PARTS, SETTINGS, StoreConfig
from segmentstore.contracts.byte_sizes import GIB, MIB
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.settings import settings_of
from segmentstore.part_configs import cache_share, read_index_config, writer_config
from segmentstore.settings_sources import merge_settings
from storagewriter.config import StorageWriterConfig
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage


def test_flat_names_are_unique_and_reach_their_part() -> None:
    declared = [name for config in (StoreConfig, *PARTS.values()) for name in settings_of(config)]
    assert len(declared) == len(set(declared)) == len(SETTINGS)
    given = {"containers": 3, "flush_age_s": 7.0, "piece_bytes": 9}
    config = StoreConfig.from_settings(given)
    assert (config.containers, config.writer.flush_age_s) == (3, 7.0)
    assert config.read_index.piece_bytes == 9
    assert config.settings() == StoreConfig().settings() | given
    assert "flush_age_s=7.0" in repr(config)


def test_a_default_is_the_default_of_its_part() -> None:
    config = StoreConfig()
    assert (config.read_index, config.writer) == (ReadIndexConfig(), StorageWriterConfig())
    assert config.read_index.cache_bytes_max == 2 * GIB


TLS = {"tls_certificate_file": "c", "tls_key_file": "k"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"flush_bytes": 0}, "setting flush_bytes: 0 is outside 1 to 1125899906842624"),
        ({"cache_bytes_max": 0}, "setting cache_bytes_max: 0 is outside 1 to"),
        ({"read_ahead_bytes_max": -1}, "setting read_ahead_bytes_max: -1 is outside 0 to"),
        ({"extent_bytes": 15}, "setting extent_bytes: 15 is outside 16 to 16777216"),
        ({"mailbox_poll_interval_s": 1e10}, "mailbox_poll_interval_s: 10000000000.0 is outside"),
        ({"checkpoint_operations": 0}, "setting checkpoint_operations: 0 is outside 1 to"),
        ({"attributes_per_segment_max": 0}, "attributes_per_segment_max: 0 is outside 1 to 100000"),
        ({"compression": "lz4"}, "setting compression: 'lz4' is not one of none, zstd"),
        ({"flush_bytes": 2, "object_bytes": 1}, "flush_bytes: 2 is more than object_bytes, 1"),
        ({"upload_bytes_max": 1}, "object_bytes: 67108864 is more than upload_bytes_max, 1"),
        ({"queue_bytes_max": 1}, "append_bytes_max: 16777216 is more than queue_bytes_max, 1"),
        ({"fetched_bytes_max": MIB}, "fetched_bytes_max: it must hold two pieces of 1048576"),
        ({"log_file_bytes": 8192}, "log_file_bytes: it must hold a frame of"),
        ({"log_file_bytes": 8191}, "setting log_file_bytes: 8191 is less than 8192"),
        ({"archive_block_bytes": 1 << 20}, "archive_block_bytes: 1048576 is less than 5242880"),
        ({"flush_byte": 1}, "flush_byte: there is no such setting; did you mean flush_bytes"),
        ({"uploads_max": "4"}, "setting uploads_max: '4' is not a number"),
        ({"consolidation": 1}, "setting consolidation: 1 is not true or false"),
        ({"controller_port": 9090}, "controller_port: it needs wire_port"),
        (
            {"controller_port": 1, "wire_port": 2, "containers": 2, "serve": "0"},
            "wire_hosts: the Controller needs it, since serve has some alone",
        ),
        (
            {
                "controller_port": 1,
                "wire_port": 2,
                "wire_host": "0.0.0.0",
                "insecure_network": True,
            },
            "wire_hosts: the Controller needs it: no client can connect to 0.0.0.0",
        ),
        ({"wire_hosts": "h"}, "wire_hosts: 'h' is not CONTAINERS=HOST:PORT, as 0-3=h:1"),
        ({"wire_hosts": "0=[::]:1"}, "wire_hosts: 0=[::]:1: no client can connect to that"),
        ({"wire_hosts": "0=h:0"}, "wire_hosts: 0=h:0: no client can connect to that address"),
        ({"wire_hosts": "0-1=h:1"}, "wire_hosts: 0-1=h:1 is not in 0 to 0"),
        (
            {"wire_hosts": "0-1=h:1,1=i:1", "containers": 2},
            "wire_hosts: '0-1=h:1,1=i:1' names container 1 twice",
        ),
        (
            {"wire_hosts": "1=h:1", "containers": 3},
            "wire_hosts: '1=h:1' does not name containers 0, 2",
        ),
        ({"wire_host": "0.0.0.0", "wire_port": 1}, "wire_host: '0.0.0.0' is not an address of"),
        ({"tls_key_file": "k"}, "tls_certificate_file: tls_key_file is set, and needs it"),
        ({"tls_certificate_file": "c"}, "tls_key_file: tls_certificate_file is set, and needs it"),
        ({"users_file": "u"}, "token_key_file: users_file is set, and needs it"),
        (
            {"token_key_file": "k", "wire_port": 1, "controller_port": 2},
            "users_file: token_key_file is set, and the Controller would give all a token",
        ),
        (
            {"wire_host": "0.0.0.0", **TLS, "wire_port": 1},
            "wire_host: '0.0.0.0' is not an address of",
        ),
        (
            {"controller_host": "0.0.0.0", **TLS, "token_key_file": "k"},
            "controller_host: '0.0.0.0' is not an address of",
        ),
        ({"controller_host": "example.org"}, "controller_host: 'example.org' is not an address of"),
    ],
)
def test_what_may_not_be_names_the_setting(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        merge_settings(settings, {}, {}, existing=False)
    assert said in str(caught.value)
    assert caught.value.setting in said


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_a_port_for_this_machine_alone_needs_no_word(host: str) -> None:
    assert StoreConfig(wire_host=host, wire_port=1, controller_host=host).wire_host == host


def test_a_port_with_encryption_and_authorization_needs_none() -> None:
    secure = {"token_key_file": "k", **TLS}
    # With the real Controller the users are its own.
    StoreConfig.from_settings({"wire_host": "0.0.0.0", "wire_port": 1, **secure})
    ports = {"wire_port": 1, "controller_port": 2, "users_file": "u"}
    hosts = {"wire_host": "::", "controller_host": "::", "wire_hosts": "0=[::2]:1"}
    StoreConfig.from_settings({**hosts, **ports, **secure})


def test_a_port_for_other_machines_needs_one() -> None:
    config = StoreConfig(wire_host="0.0.0.0", wire_port=1, insecure_network=True)
    assert config.insecure_network


def test_containers_share_what_is_of_the_store() -> None:
    config = StoreConfig.from_settings(
        {
            "containers": 4,
            "cache_bytes_max": 1000,
            "consolidation_download_bytes_per_s": 10,
            "orphan_sweep_interval_s": 1e9,
            "piece_bytes": 100,
        }
    )
    storage = MemoryObjectStorage(Runtime(), MemoryBucket())
    share = cache_share(config, present=2)
    reading, writing = read_index_config(config, storage, share), writer_config(config, share)
    assert cache_share(config, present=0) == 1000
    assert (reading.cache_bytes_max, reading.random_bytes) == (500, 100)
    assert writing.consolidation_download_bytes_per_s == 3
    assert writing.orphan_sweep_interval_s == 4e9
    shared = {"consolidation_download_bytes_per_s", "orphan_sweep_interval_s"}
    for each in dataclasses.fields(StorageWriterConfig):
        if each.name not in shared | {"unflushed_target_bytes"}:
            assert getattr(writing, each.name) == getattr(config.writer, each.name)
