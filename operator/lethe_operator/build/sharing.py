"""Whether a run may share a driver, and with whom. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from lethe.contract.kind import RunFamily, RunKind
from lethe.contract.run import RunSpec

from lethe_operator.build.sizing import Size
from lethe_operator.resources.dataset import RunTemplate
from lethe_operator.resources.observed import AttemptState, Run
from lethe_operator.settings import SharedRuns


@dataclass(frozen=True, order=True)
class Company:
    """Runs of one company can be carried out by one driver: it opens their catalog, and its pod is made as they want it."""

    catalog: str
    template: str


def company(
    run: RunSpec,
    run_bytes: int,
    size: Size,
    template: RunTemplate,
    runs: Sequence[Run],
    limits: SharedRuns,
) -> Company | None:
    """Whose driver a run may share; None when it gets one of its own.

    A Dataset whose last consolidation failed goes alone until one has ended well, whosever fault it was: one that kills its
    driver does so to others once.

    Args:
        run_bytes: How much it reads.
        size: What it would get for itself.
        template: The Dataset's run template over the chart's.
        runs: Of the Dataset, as far as they are remembered.
    """
    small = run_bytes <= limits.max_bytes_per_dataset and size.executors == 0
    if not limits.enabled or not _may_share(run.kind) or not small or _failed_last(runs):
        return None
    return Company(run.table.catalog, json.dumps(template.model_dump(mode="json", by_alias=True), sort_keys=True))


def _may_share(kind: RunKind) -> bool:
    match kind:
        case RunKind.CONSOLIDATION:
            return True
        case RunKind.REANCHORING | RunKind.RESTATEMENT | RunKind.VACUUM | RunKind.ERASURE_CHECK:
            return False
        case _:
            assert_never(kind)


def _failed_last(runs: Sequence[Run]) -> bool:
    consolidations = [a for r in runs if r.kind.family is RunFamily.CONSOLIDATION for a in r.attempts]
    last = max(consolidations, key=lambda a: a.finished or a.created, default=None)
    return last is not None and last.state is AttemptState.FAILED
