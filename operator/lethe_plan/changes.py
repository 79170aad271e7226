"""What an apply would change of each resource in YAML files, and the plan as rows, as a document and as one sentence. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final

from lethe.base import names
from lethe_local.admission import (
    Definition,
    NotAdmitted,
    Undecodable,
    admitted,
    defaulted,
    problem_of_mark,
    require_known_names,
)
from lethe_local.api.patches import LAST_APPLIED, merged, patch_of

from lethe_plan.effect import NO_EFFECT, DeletedRows, Effect, many

Document = Mapping[str, Any]

NOT_SHOWN: Final = "<not shown>"
CHANGED: Final = "<changed, not shown>"
"""In the place of filters of holds."""


@dataclass(frozen=True)
class ResourceDocument:
    """A document that is, or should be, a resource of Lethe."""

    where: str
    """The file, and the number of the document."""
    kind: str
    namespace: str
    name: str
    """Empty: it has none."""
    document: Document
    definition: Definition | None = None
    """None: it is refused."""
    problem: str = ""
    """Why it is refused; "": it is not."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, namespace and name, which tell resources apart."""
        return self.kind, self.namespace, self.name


@dataclass(frozen=True)
class ResourceDocuments:
    """The documents of all files."""

    manifests: tuple[ResourceDocument, ...]
    config_maps: Mapping[tuple[str, str], Document]
    """By namespace and name."""
    others: int
    """Documents of other kinds, ConfigMaps included: they are not planned."""


@dataclass(frozen=True)
class ApplyTarget:
    """Where the documents are applied."""

    namespace: str
    """Of documents that name none."""
    fixed: bool = False
    """The command line names it, so documents may name no other."""
    only: str = ""
    """The only namespace that the server has; "": it can have any."""


def manifests(
    documents: Iterable[tuple[str, Any]], definitions: Mapping[str, Definition], target: ApplyTarget
) -> ResourceDocuments:
    """Sort documents.

    Args:
        documents: Each with where it is.
        definitions: Of Lethe's kinds, by name.
    """
    found: list[ResourceDocument] = []
    config_maps: dict[tuple[str, str], Document] = {}
    seen: dict[tuple[str, str, str], str] = {}
    others = 0
    group = next(iter(definitions.values())).group
    for where, document in _items(documents):
        if not isinstance(document, Mapping) or not str(document.get("apiVersion")).startswith(f"{group}/"):
            others += 1
            if isinstance(document, Mapping) and document.get("kind") == "ConfigMap":
                metadata = _metadata(document)
                config_maps[str(metadata.get("namespace") or target.namespace), str(metadata.get("name"))] = document
            continue
        manifest = _manifest(where, document, definitions, target)
        if manifest.name and manifest.key in seen:
            text = f"{manifest.kind} {manifest.name} is also in {seen[manifest.key]}. Keep one of them."
            manifest = ResourceDocument(where, *manifest.key, document, None, text)
        seen.setdefault(manifest.key, where)
        found.append(manifest)
    return ResourceDocuments(tuple(found), config_maps, others)


def _items(documents: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The documents, with the items of lists instead of the lists."""
    for where, document in documents:
        if isinstance(document, Mapping) and document.get("kind") == "List" and document.get("apiVersion") == "v1":
            yield from ((f"{where}, item {n}", item) for n, item in enumerate(document.get("items") or (), 1))
        else:
            yield where, document


def _manifest(
    where: str, document: Document, definitions: Mapping[str, Definition], target: ApplyTarget
) -> ResourceDocument:
    kind, version = str(document.get("kind")), str(document.get("apiVersion"))
    metadata = _metadata(document)
    namespace, name = str(metadata.get("namespace") or target.namespace), str(metadata.get("name") or "")
    definition = definitions.get(kind)
    problem = ""
    if definition is None:
        unknown = names.unknown("kind", kind, definitions)
        problem = f"{unknown}. Lethe has {', '.join(sorted(definitions))}."
    elif definition.api_version != version:
        problem = f"{kind} has the apiVersion {version}. This version of Lethe has {definition.api_version}."
    elif target.fixed and namespace != target.namespace:
        problem = f"metadata.namespace is {namespace}, but the command names the namespace {target.namespace}."
    elif target.only and namespace != target.only:
        problem = f"metadata.namespace is {namespace}. `lethe local` has only the namespace {target.only}."
    return ResourceDocument(where, kind, namespace, name, document, None if problem else definition, problem)


def _metadata(document: Document) -> Document:
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


class Action(StrEnum):
    """What an apply does with a resource."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    """The API server would not accept it."""


@dataclass(frozen=True)
class FieldChange:
    """One field. A list changes as a whole."""

    path: str
    """`spec.consolidation.minBatches`."""
    old: Any
    """None: it is added."""
    new: Any
    """None: it is removed."""


@dataclass(frozen=True)
class Change:
    """What happens to one resource."""

    manifest: ResourceDocument
    action: Action
    fields: tuple[FieldChange, ...] = ()
    """Of CHANGE, ordered by path."""
    problem: str = ""
    """Of REFUSED."""
    before: Document | None = None
    """None: it does not exist."""
    after: Document | None = None
    """With defaults; None: it is refused."""

    @property
    def applies(self) -> bool:
        """Whether the apply changes something."""
        return self.action in (Action.CREATE, Action.CHANGE, Action.DELETE)

    def annotates(self, annotation: str) -> bool:
        """Whether the apply sets this annotation, or gives it another value."""
        values = [((d or {}).get("metadata") or {}).get("annotations") or {} for d in (self.before, self.after)]
        before, after = (v.get(annotation) for v in values)
        return after is not None and after != before


def change_of(manifest: ResourceDocument, current: Document | None) -> Change:
    """What an apply of the manifest does, as `kubectl apply` and the API server do it.

    Args:
        current: The resource; None: it does not exist.
    """
    definition = manifest.definition
    if definition is None:
        return Change(manifest, Action.REFUSED, problem=manifest.problem, before=current)
    document = {k: v for k, v in manifest.document.items() if k != "status"}
    try:
        _require_maps(document)
        require_known_names(definition, document)
        if current is None:
            after = admitted(definition, {**document, "metadata": _with_place(manifest)})
            return Change(manifest, Action.CREATE, after=after)
        # A newer version may have written the status.
        before = defaulted(definition.schema, {k: v for k, v in current.items() if k != "status"})
        wanted = merged(before, patch_of(document, before))
        after = admitted(definition, wanted, before, strict=False)
    except (NotAdmitted, Undecodable) as e:
        return Change(manifest, Action.REFUSED, problem=str(e), before=current)
    fields = tuple(map(_without_filters, _differences(_shown(before), _shown(after), "")))
    after = {**after, **({"status": current["status"]} if "status" in current else {})}
    return Change(manifest, Action.CHANGE if fields else Action.UNCHANGED, fields, before=current, after=after)


def deletion_of(manifest: ResourceDocument, current: Document) -> Change:
    """The change that deletes a resource."""
    return Change(manifest, Action.DELETE, before=current)


def _require_maps(document: Document) -> None:
    """A schema describes maps, labels and annotations only below the fields that every object has.

    Raises:
        NotAdmitted: The document breaks the definition: status 422.
    """
    for field in ("metadata", "spec"):
        if not isinstance(document.get(field, {}), Mapping):
            raise NotAdmitted(f"{field}: expected a map.")
    for field in ("labels", "annotations"):
        values = (document.get("metadata") or {}).get(field) or {}
        wrong = [k for k, v in values.items() if not isinstance(v, str)] if isinstance(values, Mapping) else [""]
        if wrong:
            raise NotAdmitted(f"metadata.{field}.{wrong[0]}: expected a string. Put the value in quotes.")
        for key, value in values.items():
            if problem := problem_of_mark(str(key), value if field == "labels" else ""):
                raise NotAdmitted(f"metadata.{field}: Invalid value: {problem}")


def _with_place(manifest: ResourceDocument) -> dict[str, Any]:
    return {**(manifest.document.get("metadata") or {}), "namespace": manifest.namespace}


def _shown(document: Document) -> dict[str, Any]:
    """The part of a resource that users set."""
    metadata = document.get("metadata") or {}
    marks = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != LAST_APPLIED}
    shown = {"labels": metadata.get("labels") or {}, "annotations": marks}
    rest = {k: v for k, v in document.items() if k not in ("apiVersion", "kind", "metadata", "status")}
    return {"metadata": shown, **rest}


def _differences(old: Any, new: Any, path: str) -> Iterator[FieldChange]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}".removeprefix("."))
    elif old != new:
        yield FieldChange(path, old, new)


def _without_filters(change: FieldChange) -> FieldChange:
    """A filter of a hold may name a person, and plans become comments of pull requests."""
    if change.path != "spec.holds":
        return change
    before = {h.get("name"): h.get("filter") for h in change.old or () if isinstance(h, Mapping)}

    def shown(hold: Any) -> Any:
        if not isinstance(hold, Mapping) or "filter" not in hold:
            return hold
        is_same = before.get(hold.get("name")) == hold["filter"]
        return {**hold, "filter": NOT_SHOWN if is_same else CHANGED}

    old, new = ([shown(h) for h in holds] if holds is not None else None for holds in (change.old, change.new))
    return FieldChange(change.path, old, new)


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
