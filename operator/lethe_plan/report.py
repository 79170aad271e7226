"""The plan as rows, as a document and as one sentence. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from lethe_plan.changes import Action, Change
from lethe_plan.effect import NO_EFFECT, DeletedRows, Effect, many

HEADERS: Final = ("RESOURCE", "ACTION", "WHAT", "DETAIL")
_RARE: Final = (Action.DELETE, Action.REFUSED)
_VALUE_AT_MOST: Final = 80  # characters of a list or a map in a row, if its first item is not longer


@dataclass(frozen=True)
class Planned:
    """A resource of the plan."""

    change: Change
    effect: Effect = NO_EFFECT

    @property
    def problem(self) -> str:
        """Why the API server or Lethe would refuse the resource; "": neither would."""
        return self.change.problem or self.effect.problem


def rows(planned: Sequence[Planned]) -> Iterator[list[str]]:
    """A row for each resource, and further ones for its fields and effects."""
    for p in planned:
        manifest, action = p.change.manifest, p.change.action
        head = [f"{manifest.kind.lower()}/{manifest.name}", str(action)]
        for what, detail in _details(p):
            yield [*head, what, detail]
            head = ["", ""]
        if head[0]:
            yield [*head, "", ""]


def document(planned: Sequence[Planned], others: int) -> dict[str, Any]:
    """The plan for programs.

    Args:
        others: Documents that are not planned.
    """
    total = _deleted(planned)
    return {
        "resources": [_resource(p) for p in planned],
        "otherDocuments": others,
        "summary": {
            **{str(a): sum(p.change.action is a for p in planned) for a in Action if a is not Action.DELETE},
            "problems": sum(bool(p.problem) for p in planned),
            "unknown": sum(bool(p.effect.unknown) for p in planned),
            "deleted": {
                "rows": total.rows,
                "batches": len(total.batches),
                "files": len(total.files),
                "bytes": total.bytes,
            },
        },
        "message": summary(planned),
    }


def summary(planned: Sequence[Planned]) -> str:
    """One sentence: 2 to create, 1 to change, 3 unchanged; deletes 1,234 rows of 2 batches in 3 files."""
    count = {a: sum(p.change.action is a for p in planned) for a in Action}
    words = {
        Action.CREATE: "to create",
        Action.CHANGE: "to change",
        Action.DELETE: "to delete",
        Action.UNCHANGED: "unchanged",
        Action.REFUSED: "refused",
    }
    parts = [f"{count[a]} {words[a]}" for a in Action if count[a] or a not in _RARE]
    text = ", ".join(parts)
    total = _deleted(planned)
    if total.batches:
        text += f"; deletes {many(total.rows, 'row')} of {many(len(total.batches), 'batch')} in {many(len(total.files), 'file')}"
    stopped = sum(bool(p.effect.problem) for p in planned)
    if stopped:
        text += f"; {many(stopped, 'resource')} that Lethe would not carry out"
    unknown = sum(bool(p.effect.unknown) for p in planned)
    return f"{text}; unknown effects of {many(unknown, 'resource')}" if unknown else text


def changes_something(planned: Sequence[Planned]) -> bool:
    """Whether the apply creates or changes a resource. Refused resources do not count."""
    return any(p.change.applies for p in planned)


def has_problems(planned: Sequence[Planned]) -> bool:
    """Whether the API server or Lethe would refuse a resource; the command then fails."""
    return any(p.problem for p in planned)


def _details(p: Planned) -> Iterator[tuple[str, str]]:
    if p.change.problem:
        yield "problem", f"{p.change.manifest.where}: {p.change.problem}"
    for field in p.change.fields:
        yield field.path, f"{_value(field.old)} -> {_value(field.new)}"
    if p.effect.problem:
        yield "problem", p.effect.problem
    yield from p.effect.lines
    if p.effect.unknown:
        yield "unknown", p.effect.unknown


def _resource(p: Planned) -> dict[str, Any]:
    manifest = p.change.manifest
    return {
        "kind": manifest.kind,
        "namespace": manifest.namespace,
        "name": manifest.name,
        "source": manifest.where,
        "action": str(p.change.action),
        **({"fields": [_field(f.path, f.old, f.new) for f in p.change.fields]} if p.change.fields else {}),
        **({"problem": p.problem} if p.problem else {}),
        **({"effect": p.effect.document} if p.effect.document else {}),
        **({"unknown": p.effect.unknown} if p.effect.unknown else {}),
    }


def _field(path: str, old: Any, new: Any) -> Mapping[str, Any]:
    return {"path": path, "old": old, "new": new}


def _deleted(planned: Sequence[Planned]) -> DeletedRows:
    return sum((p.effect.deleted for p in planned if p.effect.deleted is not None), DeletedRows())


def _value(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _VALUE_AT_MOST or not isinstance(value, list | dict):
        return text
    return _shortened(value)


def _shortened(value: list[Any] | dict[str, Any]) -> str:
    """The first items of a long value, each of them whole."""
    items = value if isinstance(value, list) else [{k: v} for k, v in value.items()]
    texts = [json.dumps(item, ensure_ascii=False) for item in items]
    ends = accumulate(map(len, texts))
    count = max(sum(end <= _VALUE_AT_MOST for end in ends), 1)
    more = f" and {len(texts) - count:,} more" if count < len(texts) else ""
    return ", ".join(texts[:count]) + more
