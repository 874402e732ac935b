"""Files check: what lies in the tiers of a simulated store between two process runs, checked and
observed.

There are two checks. `recovery.store_check` is the operator's, on a listing that may lag, where the
log is in files. The tier observer records what is there for the checkers of histories, and sees it
without delay, wherever the log is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from recovery.harness.history import History
from recovery.harness.runs.log_probes import log_probes
from recovery.harness.runs.past_rebuilding import rebuild_past
from recovery.harness.runs.plan import Plan
from recovery.harness.simulation.store_world import LOCATION, StoreWorld, stopped_catalogs
from recovery.harness.simulation.world import SimulatedProcess
from recovery.harness.tier_observer import observe_tiers
from recovery.store_check import check_store
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.findings import Finding, harmful_lines
from segmentstore.store_folder import log_directory
from tier2.object_storage import StorageUnavailableError

_LATE_PUTS: Final = ("object.put.late", "object.put.twice")


def check_files(
    world: StoreWorld, plan: Plan, history: History, *, deep: bool, settled: bool = False
) -> tuple[str, ...]:
    """Harmful findings in the files as they lie; no process has the store open.

    `settled` as `SeenTiers` has it.
    """
    rates = world.rates
    process = world.process("check")
    try:
        found = world.run_task(
            process, _check(world, plan, history, process, deep=deep, settled=settled)
        )
    except TierUnavailableError:
        found = ()  # the object storage is having a bad time; another check will see
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the run has shown
        found = (f"the check of the files ended in {type(error).__name__}: {error}",)
    finally:
        world.rates = rates
        world.kill(process)
    return found


async def _check(
    world: StoreWorld,
    plan: Plan,
    history: History,
    process: SimulatedProcess,
    *,
    deep: bool,
    settled: bool,
) -> tuple[str, ...]:
    if plan.tier1 == "file" and not process.runtime.disk.exists(f"{LOCATION}/log"):
        return ()
    containers = plan.settings.get("containers", 1)
    storage = world.object_storage(process)
    world.rates = {
        point: rate for point, rate in world.rates.items() if point.startswith("object.list.")
    }
    catalogs = await stopped_catalogs(process)
    findings: Sequence[Finding] = ()
    if plan.tier1 == "file":
        logs = {number: log_directory(LOCATION, number) for number in range(containers)}
        findings = await check_store(logs, storage, process.runtime, deep=deep, catalogs=catalogs)
    world.rates = {}
    with contextlib.suppress(StorageUnavailableError):  # likewise
        probes = log_probes(world, process, containers)
        tiers = await observe_tiers(
            history,
            probes,
            storage,
            catalogs,
            process.runtime,
            deep=deep,
            late_puts=any(point in plan.rates for point in _LATE_PUTS),
            settled=settled,
            in_doubt=plan.tier1 == "bookkeeper",
            foreign_tag=world.neighbour_tag,
        )
        await rebuild_past(
            history,
            tiers,
            probes,
            (storage, world.archive_storage(process)),
            catalogs,
            process.runtime,
            is_roomy=all(cycle.fills_at is None for cycle in plan.cycles),
        )
    await storage.close()
    return harmful_lines(findings)
