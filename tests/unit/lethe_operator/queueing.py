"""Restatements that wait for one Dataset, their runs, and what is decided about them."""

from collections.abc import Sequence
from typing import Any

from lethe_operator.actions import Actions
from lethe_operator.resources.observed import AttemptState, ObservedRun
from lethe_operator.resources.restatement import Restatement

from tests.support.builders import NOW, ago
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_group,
    a_restatement,
    a_run,
    a_world,
    an_attempt,
)
from tests.support.statuses import decide, showing

R = [a_restatement(f"r{n}", batchIds=[f"b{n}"]) for n in range(8)]


def decided(*restatements: Restatement, runs: tuple[ObservedRun, ...] = (), **spec: Any) -> Actions:
    world = a_world(restatements=restatements, runs=runs, **spec.pop("world", {}))
    return decide(a_dataset(**spec), world, NOW, SETTINGS)


def members(actions: Actions) -> list[str]:
    """Names of those whose run starts now."""
    found = [x.run.restatement.requests for x in actions.launches if x.run.restatement]
    return [r.name.removeprefix("ns/") for requests in found for r in requests]


def came(name: str, seconds_ago: float, **changes: Any) -> Restatement:
    return a_restatement(name, meta={"creationTimestamp": ago(seconds=seconds_ago).isoformat()}, **changes)


def ended(
    seconds: float, *of: Restatement, state: AttemptState = AttemptState.SUCCEEDED, **changes: Any
) -> ObservedRun:
    """A run that ended so many seconds ago, of a consolidation unless Restatements are named."""
    spec = a_group(*of) if of else a_consolidation(a_buffered("Z"))
    uid = of[0].meta.uid if len(of) == 1 else ""
    return a_run(spec, an_attempt(spec, state, finished_seconds=seconds, for_uid=uid, **changes))


def seen(actions: Actions, restatements: Sequence[Restatement]) -> list[Restatement]:
    """As they are once what was decided is written."""
    return [showing(r, actions.restatement_statuses.get(r.meta.name, r.status)) for r in restatements]
