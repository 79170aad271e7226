"""What an apply would change of each resource. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lethe_local.api.merge import merged
from lethe_local.cli.three_way import LAST_APPLIED, patch_of
from lethe_local.schema.admission import Invalid, Undecodable, admitted, require_known_fields
from lethe_local.schema.fields import defaulted

from lethe_plan.manifests import Document, Manifest


class Action(StrEnum):
    CREATE = "create"
    CHANGE = "change"
    UNCHANGED = "unchanged"
    REFUSED = "refused"  # the API server would not accept it


@dataclass(frozen=True)
class FieldChange:
    """One field. A list changes as a whole."""

    path: str  # spec.consolidation.minBatches
    old: Any  # None: it is added
    new: Any  # None: it is removed


@dataclass(frozen=True)
class Change:
    """What happens to one resource."""

    manifest: Manifest
    action: Action
    fields: tuple[FieldChange, ...] = ()  # of CHANGE, ordered by path
    problem: str = ""  # of REFUSED
    before: Document | None = None  # None: it does not exist
    after: Document | None = None  # with defaults; None: it is refused

    @property
    def applies(self) -> bool:
        """Whether the apply changes something."""
        return self.action in (Action.CREATE, Action.CHANGE)


def change_of(manifest: Manifest, current: Document | None) -> Change:
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
        require_known_fields(definition, document)
        if current is None:
            after = admitted(definition, {**document, "metadata": _with_place(manifest)})
            return Change(manifest, Action.CREATE, after=after)
        # A newer version may have written the status.
        before = defaulted(definition.schema, {k: v for k, v in current.items() if k != "status"})
        wanted = merged(before, patch_of(document, before))
        after = admitted(definition, wanted, before, strict=False)
    except (Invalid, Undecodable) as e:
        return Change(manifest, Action.REFUSED, problem=str(e), before=current)
    fields = tuple(_differences(_shown(before), _shown(after), ""))
    after = {**after, **({"status": current["status"]} if "status" in current else {})}
    return Change(manifest, Action.CHANGE if fields else Action.UNCHANGED, fields, before=current, after=after)


def _require_maps(document: Document) -> None:
    """Raises: Invalid. A schema describes maps only below the fields that every object has."""
    for field in ("metadata", "spec"):
        if not isinstance(document.get(field, {}), Mapping):
            raise Invalid(f"{field}: expected a map.")
    for field in ("labels", "annotations"):
        values = (document.get("metadata") or {}).get(field) or {}
        wrong = [k for k, v in values.items() if not isinstance(v, str)] if isinstance(values, Mapping) else [""]
        if wrong:
            raise Invalid(f"metadata.{field}.{wrong[0]}: expected a string. Put the value in quotes.")


def _with_place(manifest: Manifest) -> dict[str, Any]:
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
