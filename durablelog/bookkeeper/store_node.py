"""A store's root node: its identity, created once, by the process that opens it first, and joined
by all others.

The format's page: docs/formats/bookkeeper-store-node.md. One root is one store, for ever: what
stands in the node is never changed. A store that is restored is made in two steps: the node is
*taken* before its logs are written, and no process opens it meanwhile. Below it, `containers/<id>`
is the node of a container's log (bookkeeper_log.py).
"""

from __future__ import annotations

import json
import uuid
from typing import Any, Final

from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeConflictError,
    NodeUnavailableError,
)
from durablelog.durable_data_log_factory import StoreIdentity
from segmentstore.contracts.errors import (
    ConfigError,
    DataCorruptionError,
    NotAStoreError,
    TierUnavailableError,
)

VERSION: Final = 1
_TRIES: Final = 5
CONTAINERS_MAX: Final = 65536
_REQUIRED: Final = ("store_id", "containers", "tier2")


def containers_path(root: str) -> str:
    """The node below which the containers' nodes are."""
    return f"{root}/containers"


def owners_path(root: str) -> str:
    """The node below which living owners of containers have theirs."""
    return f"{root}/owners"


def container_path(root: str, container_id: int) -> str:
    """The node of one container's log."""
    return f"{containers_path(root)}/{container_id}"


def encode_identity(identity: StoreIdentity) -> bytes:
    """As it stands in the node."""
    fields = {"version": VERSION, **identity._asdict()}
    if not identity.shared_tier2:
        del fields["shared_tier2"]
    return json.dumps(fields, ensure_ascii=False).encode()


def decode_identity(path: str, data: bytes) -> StoreIdentity:
    """What stands in the node.

    Raises DataCorruptionError, NotAStoreError (taken); fields it does not know are passed over.
    """
    where = f"node {path}"
    try:
        fields: Any = json.loads(data)
    except ValueError:
        raise DataCorruptionError(
            where, "it is no store's node: what it holds is not JSON"
        ) from None
    if isinstance(fields, dict) and "restoring" in fields:
        detail = (
            f"store {fields['restoring']} is being restored there, or that was cut off: name "
            "another path"
        )
        raise NotAStoreError(where, detail)
    if not isinstance(fields, dict) or not {"version", *_REQUIRED} <= fields.keys():
        raise DataCorruptionError(where, "it is no store's node: it names no store")
    if fields["version"] != VERSION:
        detail = (
            f"a store's node of version {fields['version']!r}; this program knows version {VERSION}"
        )
        raise DataCorruptionError(where, detail)
    store_id, containers, tier2 = (fields[name] for name in _REQUIRED)
    try:
        store_id = str(uuid.UUID(store_id))
    except (ValueError, TypeError, AttributeError):
        raise DataCorruptionError(where, f"store_id {store_id!r} is not a UUID") from None
    if type(containers) is not int or not 1 <= containers <= CONTAINERS_MAX:
        raise DataCorruptionError(where, f"containers {containers!r} is not 1 to {CONTAINERS_MAX}")
    if not isinstance(tier2, str) or not tier2:
        raise DataCorruptionError(where, f"tier2 {tier2!r} is not a URL")
    return StoreIdentity(store_id, containers, tier2, fields.get("shared_tier2") is True)


def encode_restoring(store_id: str) -> bytes:
    """What stands in the node while the logs of a restored store are written."""
    return json.dumps({"version": VERSION, "restoring": store_id}).encode()


async def read_identity(nodes: MetadataNodes, path: str) -> StoreIdentity | None:
    """Whose node it is; None if there is none, or one that holds nothing.

    Raises DataCorruptionError, NotAStoreError, the node errors.
    """
    content = await nodes.read(path)
    return decode_identity(path, content.data) if content is not None and content.data else None


async def found_or_join(
    nodes: MetadataNodes, path: str, wished: StoreIdentity
) -> tuple[StoreIdentity, bool]:
    """Make the root node if there is none, with `wished`, whose id was drawn for this call alone;
    else see whose it is.

    The identity, and whether the store was made by this very call: a lost reply is resolved by the
    id. An empty node, as an operator makes one to set its access rights, is taken, but not if there
    are containers below it: their store's name is lost. A process that joins has to `pin` before it
    works. Raises DataCorruptionError, TierUnavailableError and the node errors.
    """
    data = encode_identity(wished)
    doubt: Exception | None = None
    for _ in range(_TRIES):
        content = await nodes.read(path)
        if content is not None and content.data:
            identity = decode_identity(path, content.data)
            return identity, identity.store_id == wished.store_id
        if content is not None and await nodes.read(containers_path(path)) is not None:
            detail = (
                "it is empty, and has containers below it: whose they are is lost, and "
                "nothing was changed"
            )
            raise DataCorruptionError(f"node {path}", detail)
        try:
            if content is None:
                await nodes.create(path, data)
            else:
                await nodes.write(path, data, content.version)
        except (NodeConflictError, NodeUnavailableError) as error:
            doubt = error
        else:
            return wished, True
    raise TierUnavailableError(
        "tier1", f"the store's node could not be made in {_TRIES} tries: {doubt}"
    ) from doubt


async def take(nodes: MetadataNodes, path: str, store_id: str) -> None:
    """Take the root for a store that is restored, whose id was drawn for this call alone: no
    process opens it before `make`.

    Raises what `check_free` raises, and TierUnavailableError.
    """
    data = encode_restoring(store_id)
    doubt: Exception | None = None
    for _ in range(_TRIES):
        content = await nodes.read(path)
        if content is not None and content.data == data:
            return
        await check_free(nodes, path)
        try:
            if content is None:
                await nodes.create(path, data)
            else:
                await nodes.write(path, data, content.version)
        except (NodeConflictError, NodeUnavailableError) as error:
            doubt = error
        else:
            return
    raise TierUnavailableError(
        "tier1", f"the store's node could not be taken in {_TRIES} tries: {doubt}"
    ) from doubt


async def check_free(nodes: MetadataNodes, path: str) -> None:
    """Raise ConfigError if the root is a store's, or has logs, NotAStoreError if it is taken.

    Also DataCorruptionError and the node errors.
    """
    identity = await read_identity(nodes, path)
    if identity is not None:
        detail = (
            f"the node {path} holds store {identity.store_id}, and a new one is to be made: "
            "name another path"
        )
        raise ConfigError("tier1", detail)
    if await nodes.read(containers_path(path)) is not None:
        detail = (
            f"the node {path} has logs below it, and a new store is to be made: name another path"
        )
        raise ConfigError("tier1", detail)


async def make(nodes: MetadataNodes, path: str, identity: StoreIdentity) -> None:
    """Make a root that was taken for this id the store's, whose logs are whole now.

    Raises NotAStoreError (it is not ours any more), TierUnavailableError and the node errors.
    """
    data, taken = encode_identity(identity), encode_restoring(identity.store_id)
    doubt: Exception | None = None
    for _ in range(_TRIES):
        content = await nodes.read(path)
        if content is not None and content.data == data:
            return
        if content is None or content.data != taken:
            raise NotAStoreError(
                f"node {path}", "it was changed while the store was being restored"
            )
        try:
            await nodes.write(path, data, content.version)
        except (NodeConflictError, NodeUnavailableError) as error:
            doubt = error
        else:
            return
    raise TierUnavailableError(
        "tier1", f"the store's node could not be made in {_TRIES} tries: {doubt}"
    ) from doubt


async def pin(nodes: MetadataNodes, path: str, identity: StoreIdentity) -> bool:
    """Make sure that the root is this store's from now on; False if it is not, for its maker took
    it back (`unmake`).

    A node with another below it cannot be removed: so one is made first, never together with the
    root, then the root is read. Before this no log is begun. Raises DataCorruptionError,
    NotAStoreError and the node errors.
    """
    try:
        await nodes.create(containers_path(path), b"", parents=False)
    except NodeConflictError:
        pass  # It is there, or the root is missing: which, the root says.
    there = await read_identity(nodes, path)
    return there is not None and there.store_id == identity.store_id


async def unmake(nodes: MetadataNodes, path: str, identity: StoreIdentity) -> bool:
    """Remove the root node of a store that was just made and cannot be one; whether it is deleted.

    Not if another process has pinned it already: that one has joined the store, and works.
    """
    content = await nodes.read(path)
    if content is None or content.data != encode_identity(identity):
        return True
    try:
        await nodes.delete(path, content.version)
    except NodeConflictError:
        return False
    return True
