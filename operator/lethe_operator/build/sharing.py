"""Whether a run may share a driver, and with whom. Pure."""

import json
from dataclasses import dataclass

from lethe.run import RunSpec

from lethe_operator.build.sizing import Size
from lethe_operator.resources.dataset import RunTemplate
from lethe_operator.settings import SharedRuns


@dataclass(frozen=True, order=True)
class Company:
    """Runs of one company can be carried out by one driver: it opens their catalog, and its pod is made as they want it."""

    catalog: str
    template: str


def company(run: RunSpec, run_bytes: int, size: Size, template: RunTemplate, limits: SharedRuns) -> Company | None:
    """Whose driver a run may share; None when it gets one of its own.

    Only the first attempt shares: whatever went wrong in company, and whoever's fault it was, goes on alone, so that a run
    that kills its driver does so to others once at most.

    Args:
        run_bytes: How much it reads.
        size: What it would get for itself.
        template: The Dataset's run template over the chart's.
    """
    small = run_bytes <= limits.max_bytes_per_dataset and size.executors == 0
    promotes = run.consolidation is not None and bool(run.consolidation.batch_ids)
    if not limits.enabled or run.attempt > 1 or not promotes or not small:
        return None
    return Company(run.table.catalog, json.dumps(template.model_dump(mode="json", by_alias=True), sort_keys=True))
