"""Merge patches, and what `apply` changes of an object. Pure.

As `kubectl apply` does: by the manifest, the last applied manifest and the object. A field of the manifest is set. A field that
only the last applied manifest had is removed, a map as a whole. All other fields stay: defaults, the status, and what others
have set. Lists are replaced.
"""

import json
from collections.abc import Mapping
from typing import Any, Final


def merged(old: Any, patch: Any) -> Any:
    """The result of a JSON merge patch (RFC 7396): null removes, lists are replaced."""
    if not isinstance(patch, Mapping):
        return patch
    document = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            document.pop(key, None)
        else:
            document[key] = merged(document.get(key), value)
    return document


Json = Mapping[str, Any]
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def applied(document: Json) -> dict[str, Any]:
    """The manifest as `apply` sends it: with itself in an annotation, and without a status."""
    bare = {k: v for k, v in document.items() if k != "status"}
    text = json.dumps(bare, separators=(",", ":"), sort_keys=True) + "\n"
    metadata = {**(bare.get("metadata") or {})}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), LAST_APPLIED: text}
    return {**bare, "metadata": metadata}


def last_applied(current: Json) -> Json:
    """The manifest that was applied last; empty, if the object was not made by `apply` or the annotation is unreadable."""
    text = ((current.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        return {}
    return document if isinstance(document, Mapping) else {}


def patch_of(document: Json, current: Json) -> dict[str, Any]:
    """The JSON merge patch with which `apply` changes an object to follow a manifest; empty: nothing changes."""
    wanted = _changeable(applied(document))
    return _united(_removals(_changeable(last_applied(current)), wanted, current), _changes(current, wanted))


def _changeable(document: Json) -> dict[str, Any]:
    """Without what identifies the object. kubectl adds the namespace to what was applied last."""
    metadata = document.get("metadata") or {}
    marks = {k: metadata[k] for k in ("labels", "annotations") if k in metadata}
    return {**{k: v for k, v in document.items() if k not in ("apiVersion", "kind")}, "metadata": marks}


def _changes(current: Json, wanted: Json) -> dict[str, Any]:
    """What the manifest adds and changes. A null in it sets nothing."""
    changes: dict[str, Any] = {}
    for key, value in wanted.items():
        now = current.get(key)
        if isinstance(value, Mapping) and isinstance(now, Mapping):
            if inner := _changes(now, value):
                changes[key] = inner
        elif value is not None and value != now:
            changes[key] = value
    return changes


def _removals(original: Json, wanted: Json, current: Json) -> dict[str, Any]:
    """What the last applied manifest had, the manifest has not, and the object still has: each with null."""
    removals: dict[str, Any] = {}
    for key, value in original.items():
        if key not in current:
            continue
        now, new = current[key], wanted.get(key)
        if new is None:
            removals[key] = None
        elif isinstance(value, Mapping) and isinstance(new, Mapping) and isinstance(now, Mapping):
            inner = _removals(value, new, now)
            removals |= {key: inner} if inner else {}
    return removals


def _united(one: Json, other: Json) -> dict[str, Any]:
    """Both patches, which set no field in common."""
    both = {k: _united(one[k], other[k]) for k in one.keys() & other.keys() if isinstance(one[k], Mapping)}
    return {**one, **other, **both}
