"""What a VacuumPolicy would decide for each Dataset that it selects. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lethe.base.errors import Verdict
from lethe.contract.kubernetes import written
from lethe.contract.result import VacuumPlanned
from lethe.contract.run import VacuumSpec
from lethe.contract.status import PolicyDataset, VacuumStatus
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import TableView
from lethe_operator.resources.vacuum_policy import VacuumPolicy
from lethe_operator.runs import spec as run_specs
from lethe_operator.vacuum.context import Due, VacuumContext
from lethe_operator.vacuum.history import history_of
from lethe_operator.vacuum.triggers import hours

from lethe_plan.effect import Effect, many


@dataclass(frozen=True)
class Decided:
    """What the policy decides for one Dataset."""

    dataset: str
    said: PolicyDataset | VacuumStatus | None
    """As the policy's status would show it, or as the Dataset's status shows it; None: unknown."""
    starts: bool = False
    """A vacuum starts at once."""
    planned: VacuumPlanned | None = None
    """What a vacuum would do now; None: nothing, or unknown."""
    unknown: str = ""
    """Why nothing is known of the table; "": it is known."""


def vacuum_spec(dataset: Dataset, policy: VacuumPolicy, table: TableView, now: datetime) -> VacuumSpec:
    """The document of a vacuum that starts now."""
    history = history_of(dataset.status.vacuum, (), table)
    context = VacuumContext(dataset, policy, table, (), history, now)
    return run_specs.vacuum_of(dataset, context.spec(Due("", "", "")))


def effect(policy: VacuumPolicy, decided: Sequence[Decided], left: Sequence[str], now: datetime) -> Effect:
    """What the policy decides.

    Args:
        decided: For the Datasets for which it is the one that applies.
        left: Names of the Datasets for which it applied before and no longer does.
    """
    window = hours(policy.spec.window, now) if policy.spec.window is not None else None
    problem = str(window) if isinstance(window, Verdict) else ""
    lines = [(f"dataset/{d.dataset}", _text(d)) for d in decided]
    lines += [(f"dataset/{name}", "this policy no longer applies to it") for name in left]
    if not lines:
        lines.append(("datasets", "it applies to no Dataset of the namespace"))
    missing = [f"{d.dataset}: {d.unknown}" for d in decided if d.unknown]
    document = {"datasets": [_document(d) for d in decided], "noLonger": list(left)}
    return Effect(tuple(lines), document, unknown="; ".join(missing), problem=problem)


def with_vacuum(effect: Effect, decided: Decided) -> Effect:
    """The effect on a Dataset, with what a vacuum that a user asks for would do."""
    document = {**effect.document, "vacuum": _document(decided)}
    return replace(effect, lines=(*effect.lines, ("vacuum", _text(decided))), document=document)


def deleted(left: Mapping[str, VacuumPolicy | None]) -> Effect:
    """What the deletion of a policy does.

    Args:
        left: The Datasets to which it applies, by name, and the policy that applies to each afterwards; None: none does.
    """
    lines = tuple(
        (
            f"dataset/{name}",
            f"VacuumPolicy {policy.meta.name} applies to it"
            if policy is not None
            else "no VacuumPolicy applies to it: no vacuum starts, so deadlines of erasures can be missed",
        )
        for name, policy in sorted(left.items())
    )
    return Effect(lines or (("datasets", "it applies to no Dataset of the namespace"),))


def _text(decided: Decided) -> str:
    if decided.unknown:
        seen = decided.said.message if decided.said is not None else None
        return f"the operator said last: {seen}" if seen else "unknown"
    starts = " A vacuum starts." if decided.starts else ""
    said = decided.said or PolicyDataset(name=decided.dataset)
    return f"{said.reason}: {said.message}{starts} {_work(decided.planned)}"


def _work(planned: VacuumPlanned | None) -> str:
    if planned is None:
        return "There is nothing to purge."
    rewrites = f"rewrites at most {many(planned.files, 'file')} ({written(planned.bytes)})"
    drops = f", drops {many(planned.whole_files, 'file')}" if planned.whole_files else ""
    rows = f"{many(planned.rows, 'row')} of {many(planned.tombstones, 'tombstone')}"
    text = f"{_aged(planned)}A vacuum now {rewrites}{drops} and purges {rows}."
    if planned.files_held:
        text += f" Holds may keep {many(planned.files_held, 'file')} of them."
    if planned.next_evict_by is not None:
        text += f" The first of these rows must be gone by {planned.next_evict_by:%Y-%m-%dT%H:%MZ}."
    if not planned.files_left:
        return text
    return f"{text} {many(planned.files_left, 'file')} ({written(planned.bytes_left)}) are left to the next."


def _aged(planned: VacuumPlanned) -> str:
    """What is removed because it is too old; "": nothing."""
    if planned.retention_cutoff is None:
        return ""
    whole = f"{many(planned.retention_whole_files, 'whole file')} ({written(planned.retention_bytes)}, "
    whole += f"{many(planned.retention_rows, 'row')})"
    mixed = f" and such rows of {many(planned.retention_files, 'file')}" if planned.retention_files else ""
    return f"Rows before {planned.retention_cutoff} are too old: {whole}{mixed}. "


def _document(decided: Decided) -> Mapping[str, Any]:
    planned = decided.planned
    return {
        **(decided.said.to_document() if decided.said is not None else {}),
        "name": decided.dataset,
        "starts": decided.starts,
        **({"plan": planned.model_dump(mode="json", by_alias=True)} if planned is not None else {}),
        **({"unknown": decided.unknown} if decided.unknown else {}),
    }
