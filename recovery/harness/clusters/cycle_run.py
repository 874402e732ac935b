"""CycleRun: a cluster of real processes under load; cycles of faults, a rolling restart, and the
judgement.

Rules of this file:

- all that a fault has taken away is there again before the next cycle begins, all containers are
  served, and each client was acknowledged something that it sent since;
- everything that was started is stopped on every way out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from durablelog.bookkeeper.bookkeeper_clients import open_nodes
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.cluster.settings import ClusterExtras
from durablelog.bookkeeper.log_metadata import decode_record
from durablelog.bookkeeper.metadata_node import NodeUnavailableError
from durablelog.bookkeeper.store_node import container_path
from recovery.harness.clusters.cycle_clients import CycleClients
from recovery.harness.clusters.cycle_plan import BOOKIES, HOSTS, SESSION_TIMEOUT_S, CycleStep
from recovery.harness.clusters.cycle_report import CycleSeen, CyclesReport
from recovery.harness.clusters.linked_host import (
    BOOKIE_EXTRAS,
    BOOKIE_NAME,
    HostLinks,
    LinkedHost,
)
from recovery.harness.clusters.sent_events import violations
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.link_proxy import LinkProxy
from recovery.harness.services.s3_servers import S3Proxy, VersityGateway, credentials
from recovery.harness.services.server import HOST
from segmentstore.cluster.administration import ClusterPicture, read_cluster
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.contracts.runtime import Runtime

CONTAINERS: Final = 6
PATH: Final = "/cycles"
_BUCKET: Final = "cycles"
_SERVED_S: Final = 120.0
"""From the end of a fault until all is served, and goes on, at most."""
_READERS_S: Final = 60.0
_CHECK_S: Final = 0.2

Say = Callable[[str], None]


class NotServedError(RuntimeError):
    """Some container, or some client, did not go on behind a fault."""


class CycleRun:
    """One run in one folder; used once, on a `LinkedLoop` with these `detours`."""

    def __init__(self, folder: Path, seed: str, detours: dict[int, int], say: Say) -> None:
        self._folder = folder
        self._detours = detours
        self._say = say
        self._hosts: list[LinkedHost] = []
        self._bookkeeper = BookKeeperCluster(
            folder / "bookkeeper",
            BOOKIES,
            extras=ClusterExtras(hosts=(BOOKIE_NAME,), bookie=BOOKIE_EXTRAS),
        )
        storage = VersityGateway if VersityGateway.available() else S3Proxy
        self._storage = storage(folder / "s3")
        self.report: Final = CyclesReport(seed)
        """What was seen so far."""

    async def carry_out(self, steps: Iterable[CycleStep], *, rolling: bool) -> None:
        """All steps, and the restart of everything in turn; then what is wrong is in the report."""
        async with AsyncExitStack() as running:
            await self._start(running)
            await self._all_served()
            load = CycleClients(self._locations(), self._controllers(), CONTAINERS)
            running.push_async_callback(load.close)
            await load.begin()
            try:
                await self._settled(load)
                for number, step in enumerate(steps):
                    seen = await self._seen(load, step.kind, partial(self._fault, step))
                    self.report.cycles.append(seen)
                    self._say(f"{number + 1}: {seen.text()}")
                self.report.unknown = _unknown(load)
                if rolling:
                    await self._restart_in_turn(load)
                self.report.unknown_rolling = _unknown(load) - self.report.unknown
            except NotServedError as error:
                self.report.violations.append(str(error))
            await self._check(load)

    # --- the cluster ------------------------------------------------------------------------------

    async def _start(self, running: AsyncExitStack) -> None:
        self._say("starting ZooKeeper, bookies, the S3 server and hosts")
        running.push_async_callback(asyncio.to_thread, self._bookkeeper.stop)
        await asyncio.to_thread(self._bookkeeper.start)
        running.push_async_callback(asyncio.to_thread, self._storage.stop)
        await asyncio.to_thread(self._storage.start)
        await asyncio.to_thread(self._storage.make_bucket, _BUCKET)
        bookies = [
            int(self._bookkeeper.bookie_id(index).rpartition(":")[2]) for index in range(BOOKIES)
        ]
        for number in range(HOSTS):
            links = HostLinks(number, self._zookeeper_port, bookies)
            await running.enter_async_context(links)
            self._detours[links.wire_port] = links.clients.port
            name = f"host-{number + 1}"
            host = LinkedHost(self._folder / name, name, links, self._environment(links))
            running.push_async_callback(asyncio.to_thread, host.kill)
            self._hosts.append(host)
        await asyncio.gather(*(asyncio.to_thread(host.start) for host in self._hosts))

    @property
    def _zookeeper_port(self) -> int:
        return int(self._bookkeeper.zookeeper.rpartition(":")[2])

    def _environment(self, links: HostLinks) -> dict[str, str]:
        tier1 = f"bookkeeper://{HOST}:{links.zookeeper.port}{PATH}"
        return {
            **credentials(),
            "SEGMENTSTORE_TIER1": f"{tier1}?session_timeout_s={SESSION_TIMEOUT_S}",
            "SEGMENTSTORE_TIER2": self._storage.location(_BUCKET),
            "SEGMENTSTORE_CONTAINERS": str(CONTAINERS),
        }

    def _locations(self) -> list[str]:
        """One client finds the hosts by ZooKeeper, two by addresses."""
        addresses = [f"{HOST}:{host.port}" for host in self._hosts]
        return [
            f"zookeeper://{self._bookkeeper.zookeeper}{PATH}",
            ",".join(addresses),
            f"{addresses[-1]},",
        ]

    def _controllers(self) -> list[str]:
        return [f"{HOST}:{host.links.controller_clients.port}" for host in self._hosts]

    # --- cycles -----------------------------------------------------------------------------------

    async def _seen(
        self, load: CycleClients, kind: str, fault: Callable[[], Awaitable[None]]
    ) -> CycleSeen:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        load.take_waits()
        await fault()
        await self._settled(load)
        return CycleSeen(kind, loop.time() - begun, *load.take_waits())

    async def _fault(self, step: CycleStep) -> None:
        victims = await self._victims(step)
        first = victims[0]
        match step.kind:
            case "host killed":
                await self._kill(victims[:1], step)
            case "two hosts killed":
                await self._kill(victims[:2], step)
            case "two hosts paused, longer than their sessions":
                await self._pause(victims[:2], step)
            case "host drained and started":
                await self._drain(first)
            case "link host to ZooKeeper cut":
                await self._cut([first.links.zookeeper], step)
            case "link host to a bookie cut":
                await self._cut([first.links.bookies[step.bookie]], step)
            case "link host to all bookies cut":
                await self._cut(first.links.bookies, step)
            case "link clients to a host cut":
                await self._cut([first.links.clients, first.links.controller_clients], step)
            case "bookie killed":
                await asyncio.to_thread(self._bookkeeper.kill_bookie, step.bookie)
                await asyncio.sleep(step.seconds)
                await asyncio.to_thread(self._bookkeeper.start_bookie, step.bookie)
            case "ZooKeeper killed":
                await asyncio.to_thread(self._bookkeeper.kill_zookeeper)
                await asyncio.sleep(step.seconds)
                await asyncio.to_thread(self._bookkeeper.start_zookeeper)
            case _:
                await self._pause(victims[:1], step)

    async def _victims(self, step: CycleStep) -> list[LinkedHost]:
        """The hosts in turn from the one that is chosen, those with containers first."""
        owners = set((await self._picture()).map.owners.values())
        turned = [self._hosts[(step.victim + number) % HOSTS] for number in range(HOSTS)]
        return sorted(turned, key=lambda host: host.host_id not in owners)

    async def _kill(self, hosts: list[LinkedHost], step: CycleStep) -> None:
        self.report.killed += len(hosts)
        await asyncio.gather(
            *(asyncio.to_thread(host.kill if step.whole else host.kill_alone) for host in hosts)
        )
        await asyncio.sleep(step.seconds)
        await asyncio.gather(*(asyncio.to_thread(host.start) for host in hosts))

    async def _pause(self, hosts: list[LinkedHost], step: CycleStep) -> None:
        self.report.paused += len(hosts)
        try:
            for host in hosts:
                await asyncio.to_thread(host.pause, whole=step.whole)
            await asyncio.sleep(step.seconds)
        finally:
            for host in hosts:
                host.resume()

    async def _drain(self, host: LinkedHost) -> None:
        code = await asyncio.to_thread(host.drain)
        if code:
            self.report.violations.append(f"{host.host_id} ended with {code} behind SIGTERM")
        await asyncio.to_thread(host.start)

    async def _cut(self, links: list[LinkProxy], step: CycleStep) -> None:
        for link in links:
            await link.cut(silent=step.silent)
        await asyncio.sleep(step.seconds)
        for link in links:
            link.heal()

    async def _restart_in_turn(self, load: CycleClients) -> None:
        """Hosts one by one, bookies one by one, ZooKeeper."""
        steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            *(("host", partial(self._drain, host)) for host in self._hosts),
            *(("bookie", partial(self._restart_bookie, index)) for index in range(BOOKIES)),
            ("ZooKeeper", self._restart_zookeeper),
        ]
        for kind, restart in steps:
            seen = await self._seen(load, kind, restart)
            self.report.rolling.append(seen)
            self._say(f"restarted {seen.text()}")

    async def _restart_bookie(self, index: int) -> None:
        await asyncio.to_thread(self._bookkeeper.stop_bookie, index)
        await asyncio.to_thread(self._bookkeeper.start_bookie, index)

    async def _restart_zookeeper(self) -> None:
        await asyncio.to_thread(self._bookkeeper.kill_zookeeper)
        await asyncio.to_thread(self._bookkeeper.start_zookeeper)

    async def _settled(self, load: CycleClients) -> None:
        """Return when all containers are served, and all clients go on."""
        await self._all_served()
        try:
            async with asyncio.timeout(_SERVED_S):
                await load.all_go_on()
        except TimeoutError:
            waiting = [
                each.number for each in load.senders if each.sent - 1 > each.last_acknowledged
            ]
            raise NotServedError(
                f"{_SERVED_S:.0f} s behind a fault all is served, and senders {waiting} wait"
            ) from None

    async def _all_served(self) -> None:
        picture: ClusterPicture | None = None
        try:
            async with asyncio.timeout(_SERVED_S):
                while picture is None or picture.serving < CONTAINERS or len(picture.hosts) < HOSTS:
                    await asyncio.sleep(_CHECK_S)
                    with suppress(NodeUnavailableError):
                        picture = await self._picture()
        except TimeoutError:
            rows = [] if picture is None else picture.container_rows()
            there = [] if picture is None else sorted(picture.hosts)
            raise NotServedError(
                f"{_SERVED_S:.0f} s behind a fault: hosts {there}, {rows}"
            ) from None

    async def _picture(self) -> ClusterPicture:
        location = BookKeeperLocation.parse(self._bookkeeper.url(PATH))
        nodes = await open_nodes(location, os.environ, Runtime())
        try:
            return await read_cluster(ClusterNodes(nodes, location.path), CONTAINERS)
        finally:
            await nodes.close()

    # --- the judgement ----------------------------------------------------------------------------

    async def _check(self, load: CycleClients) -> None:
        report = self.report
        try:
            async with asyncio.timeout(_SERVED_S):
                await load.end()
            contents = await load.contents()
        except Exception as error:  # noqa: BLE001 - it is what the run has shown
            report.violations.append(
                f"the segments cannot be read: {type(error).__name__}: {error}"
            )
            return
        await load.readers_at(contents, _READERS_S)
        for followed in load.followed:
            content = contents[followed.name]
            senders = [each for each in load.senders if each.segment == followed.name]
            report.violations += violations(followed.name, content, senders)
            if not followed.agrees(content):
                report.violations.append(
                    f"{followed.name}: its reader got {followed.length} of {len(content)} bytes, "
                    f"or others: {followed.error}"
                )
        for sender in load.senders:
            report.acknowledged += len(sender.acknowledged)
            report.repeated += sum(each is None for each in sender.acknowledged.values())
            report.violations += (f"sender {sender.number}: {error}" for error in sender.errors)
        report.openings = await self._openings()

    async def _openings(self) -> int:
        """Of all logs since their first ones: each one raises the epoch."""
        location = BookKeeperLocation.parse(self._bookkeeper.url(PATH))
        nodes = await open_nodes(location, os.environ, Runtime())
        try:
            epochs = []
            for container in range(CONTAINERS):
                path = container_path(location.path, container)
                content = await nodes.read(path)
                if content is not None:
                    epochs.append(decode_record(content.data, path).epoch)
            return sum(epochs) - len(epochs)
        finally:
            await nodes.close()


def _unknown(load: CycleClients) -> int:
    return sum(len(sender.unknown) for sender in load.senders)
