"""Which plan a seed means for a workload, and which scenario carries a plan out."""

from __future__ import annotations

from recovery.harness.runs.cluster_plan import draw_cluster_plan, draw_take_over_plan
from recovery.harness.runs.cluster_scenario import ClusterScenario
from recovery.harness.runs.plan import CLUSTER, TAKE_OVERS, Plan, draw_plan
from recovery.harness.runs.run_result import RunResult
from recovery.harness.runs.scenario import Scenario
from recovery.harness.runs.take_over_scenario import TakeOverScenario


def plan_of(seed: str, workload: str) -> Plan:
    """The plan of a seed: the same for the same arguments."""
    if workload == CLUSTER:
        return draw_cluster_plan(seed)
    return draw_take_over_plan(seed) if workload == TAKE_OVERS else draw_plan(seed, workload)


def run_plan(plan: Plan, *, keep_trace: bool = False) -> RunResult:
    """Carry a plan out, and check it. Never raises."""
    if plan.workload == CLUSTER:
        return ClusterScenario(plan, keep_trace=keep_trace).run()
    if plan.workload == TAKE_OVERS:
        return TakeOverScenario(plan, keep_trace=keep_trace).run()
    return Scenario(plan, keep_trace=keep_trace).run()
