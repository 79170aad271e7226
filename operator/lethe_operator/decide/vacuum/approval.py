"""Whether a vacuum that needs approval may start. A run plans it first; the user approves the digest of that plan. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lethe_operator.decide.vacuum.history import Plan, VacuumHistory
from lethe_operator.resources.common import APPROVE
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.quantity import written

# Tombstones may arrive continuously, people need time to read a plan, and each plan costs a Job.
PLANNED_AGAIN_AFTER: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class Approved:
    digest: str


@dataclass(frozen=True)
class AwaitApproval:
    plan: Plan
    replan_time: datetime | None = None  # when a new plan replaces this outdated one; None: it is current


@dataclass(frozen=True)
class PlanFirst:
    """There is no plan, or it is too old."""


def approval(
    dataset: Dataset, history: VacuumHistory, state: str, used: bool, now: datetime
) -> Approved | AwaitApproval | PlanFirst:
    """Whether a vacuum of this state of the ledger is approved.

    Args:
        state: See `history.state_of`.
        used: The current approval has already led to a vacuum.
    """
    plan = history.plan
    if plan is None:
        return PlanFirst()
    if not used and dataset.meta.annotations.get(APPROVE, "").strip() == plan.planned.digest:
        return Approved(plan.planned.digest)  # even of an outdated plan: the run checks that its own plan is the same
    if plan.state == state:
        return AwaitApproval(plan)
    replan_time = plan.finished + PLANNED_AGAIN_AFTER
    return AwaitApproval(plan, replan_time) if replan_time > now else PlanFirst()


def request(dataset: Dataset, plan: Plan) -> str:
    """What the plan does, and how to approve it."""
    p, meta = plan.planned, dataset.meta
    left = f", and leaves {p.files_left} files ({written(p.bytes_left)}) for the next vacuum" if p.files_left else ""
    return (
        f"The plan applies {p.tombstones} tombstones: it rewrites {p.files} files ({written(p.bytes)}) and deletes "
        f"{p.whole_files} whole files{left}. To approve it: kubectl annotate dataset {meta.name} -n {meta.namespace} "
        f"--overwrite {APPROVE}={p.digest}"
    )
