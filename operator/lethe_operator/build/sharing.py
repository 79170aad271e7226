"""Whether a run may share a driver, and with which other runs. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from lethe.contract.kind import RunFamily, RunKind
from lethe.contract.run import RunSpec

from lethe_operator.build.launcher import launcher_of
from lethe_operator.build.sizing import Size
from lethe_operator.resources.dataset import RunTemplate
from lethe_operator.resources.launcher import Launcher
from lethe_operator.resources.observed import AttemptState, ObservedRun
from lethe_operator.settings import SharedRuns


@dataclass(frozen=True, order=True)
class Company:
    """Runs with equal values may share a driver."""

    catalog: str
    template: str  # the run template, as JSON


def company(
    run: RunSpec,
    run_bytes: int,
    size: Size,
    template: RunTemplate,
    runs: Sequence[ObservedRun],
    limits: SharedRuns,
) -> Company | None:
    """Which driver a run may share; None: it gets its own.

    A Dataset whose last consolidation failed shares no driver until one has succeeded, whatever the cause: a run that kills its
    driver does so to others at most once.

    Args:
        run_bytes: How much it reads.
        size: Of its own driver.
        template: The Dataset's run template, merged with the chart's.
        runs: Known runs of the Dataset.
    """
    small = run_bytes <= limits.max_bytes_per_dataset and size.executors == 0
    # Kueue may stop and resume a Job, and then a shared driver would repeat the runs of Datasets that have ended theirs.
    plain = launcher_of(template) is Launcher.JOB and not template.queue
    if not limits.enabled or not _may_share(run.kind) or not small or not plain or _failed_last(runs):
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


def _failed_last(runs: Sequence[ObservedRun]) -> bool:
    consolidations = [a for r in runs if r.kind.family is RunFamily.CONSOLIDATION for a in r.attempts]
    last = max(consolidations, key=lambda a: a.finished or a.created, default=None)
    return last is not None and last.state is AttemptState.FAILED
