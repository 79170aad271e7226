"""From which Datasets an Erase would remove a subject, or where a Redact would change it, and what would be searched. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lethe.base.errors import Verdict
from lethe.contract.kubernetes import written
from lethe.contract.restatement import RestatementSpec, RowsCondition
from lethe.files.bounds import FileBounds
from lethe_operator.request.targets import Target, Targets

from lethe_plan.effect import Effect, many

_SHOWN_NAMES = 5


@dataclass(frozen=True)
class SearchedTable:
    """What is known of the table of a Dataset."""

    files: Sequence[FileBounds] = ()
    """Of the head; empty: there is no table yet."""
    unusable: Verdict | None = None
    """Why its rows cannot be found by the columns, or a column cannot be redacted."""
    unknown: str = ""
    """Why the table could not be read; "": it could."""


def effect(spec: RestatementSpec, targets: Targets, tables: Mapping[str, SearchedTable]) -> Effect:
    """What a Restatement with a subject would do if it were carried out now.

    Args:
        spec: Its spec.
        targets: The Datasets that are part of it.
        tables: By the names of the Datasets whose rows can be named.
    """
    if not targets.included:
        return Effect((("datasets", _none(spec, targets)),), {"operation": str(spec.operation), "datasets": []})
    problems = {t.name: problem for t in targets.included if (problem := _problem(t, tables)) is not None}
    blocked = f", {len(problems)} of them blocked" if problems else ""
    lines = [("datasets", f"{many(len(targets.included), 'Dataset')}{blocked}")]
    lines += [(t.name, str(problems[t.name]) if t.name in problems else _searched(t, tables)) for t in targets.included]
    if targets.without_identity:
        names = targets.without_identity
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        lines.append(("not searched", f"{', '.join(names[:_SHOWN_NAMES])}{more}: declares none of the identities"))
    if spec.evict_by_seconds is not None:
        lines.append(("deadline", f"the bytes must be gone {many(spec.evict_by_seconds, 'second')} after each commit"))
    return Effect(
        tuple(lines),
        _document(spec, targets, tables, problems),
        unknown="; ".join(_unknown(spec.operation.done, targets, tables)),
    )


def _none(spec: RestatementSpec, targets: Targets) -> str:
    names = ", ".join(i.identity for i in spec.subject.identities) if spec.subject is not None else ""
    selected = many(len(targets.without_identity), "selected Dataset")
    return f"none of {selected} declares {names}: nothing is {spec.operation.done} until one does"


def _problem(target: Target, tables: Mapping[str, SearchedTable]) -> Verdict | None:
    """Why nothing can be erased or redacted in a Dataset."""
    table = tables.get(target.name)
    return target.problem or (table.unusable if table is not None else None)


def _searched(target: Target, tables: Mapping[str, SearchedTable]) -> str:
    table = tables.get(target.name, SearchedTable())
    columns = ", ".join(_column(c) for c in target.conditions)
    if table.unknown:
        return f"by {columns}"
    size = sum(f.size for f in table.files)
    return f"by {columns}: a run searches {many(len(table.files), 'file')} ({written(size)}) or fewer"


def _column(condition: RowsCondition) -> str:
    via = condition.via
    return condition.column if via is None else f"{condition.column} (looked up in {via.dataset}.{via.from_column})"


def _unknown(done: str, targets: Targets, tables: Mapping[str, SearchedTable]) -> Sequence[str]:
    unread = [f"{t.name}: {table.unknown}" for t in targets.included if (table := tables.get(t.name)) and table.unknown]
    return [*unread, f"which rows are {done}: only runs read the values"]


def _document(
    spec: RestatementSpec, targets: Targets, tables: Mapping[str, SearchedTable], problems: Mapping[str, Verdict]
) -> Mapping[str, object]:
    """For programs."""
    datasets = []
    for target in targets.included:
        table, problem = tables.get(target.name, SearchedTable()), problems.get(target.name)
        searched = (
            {} if problem or table.unknown else {"files": len(table.files), "bytes": sum(f.size for f in table.files)}
        )
        why = {"reason": str(problem.reason), "message": problem.message} if problem is not None else {}
        columns = list(dict.fromkeys(c.column for c in target.conditions))
        datasets.append({"name": target.name, "columns": columns, **searched, **why})
    return {"operation": str(spec.operation), "datasets": datasets, "withoutIdentity": list(targets.without_identity)}
