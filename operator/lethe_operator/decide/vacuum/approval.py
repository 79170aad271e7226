"""Whether a vacuum that has to be approved may start: it is planned first, and what is approved is the plan's digest. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lethe_operator.decide.vacuum.history import Plan, VacuumHistory
from lethe_operator.resources.common import APPROVE
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.quantity import written

# Tombstones may come all the time; people need some of it to read a plan, and each one is a Job.
PLANNED_AGAIN_AFTER: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class Approved:
    digest: str


@dataclass(frozen=True)
class Ask:
    """`renewed`: when the plan, which is out of date, is made anew; None: it is not."""

    plan: Plan
    renewed: datetime | None = None


@dataclass(frozen=True)
class PlanFirst:
    """There is no plan, or it is too old."""


def approval(
    dataset: Dataset, memory: VacuumHistory, state: str, used: bool, now: datetime
) -> Approved | Ask | PlanFirst:
    """How a vacuum stands that would be made for `state`, see `vacuum_memory.state_of`.

    Args:
        used: The approval that there may be has led to a vacuum already.
    """
    plan = memory.plan
    if plan is None:
        return PlanFirst()
    if not used and dataset.meta.annotations.get(APPROVE, "").strip() == plan.planned.digest:
        return Approved(plan.planned.digest)  # also of an old plan: the run looks whether it is the same still
    if plan.state == state:
        return Ask(plan)
    renewed = plan.finished + PLANNED_AGAIN_AFTER
    return Ask(plan, renewed) if renewed > now else PlanFirst()


def request(dataset: Dataset, plan: Plan) -> str:
    """What is asked of whoever may approve."""
    p, meta = plan.planned, dataset.meta
    left = f" and leave {p.files_left} files ({written(p.bytes_left)}) to the next" if p.files_left else ""
    return (
        f"It would apply {p.tombstones} tombstones, rewrite {p.files} files ({written(p.bytes)}) and drop {p.whole_files} whole "
        f"ones{left}. To purge them: kubectl annotate dataset {meta.name} -n {meta.namespace} --overwrite {APPROVE}={p.digest}"
    )
