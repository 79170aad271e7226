"""A Kubernetes API server of a few lines: it stores documents and merges patches, and knows nothing of what they mean."""

import json
from collections.abc import Mapping
from typing import Any

from lethe_operator.kube import AlreadyExists, Document, Kind, NotFound


class Cluster:
    """Speaks as lethe_operator.kube.Kube does."""

    def __init__(self, *objects: tuple[Kind, Document]) -> None:
        self.objects: dict[tuple[str, str, str], Document] = {}
        for kind, document in objects:
            self.create(kind, document["metadata"]["namespace"], document)

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        try:
            return _copy(self.objects[kind.name, namespace, name])
        except KeyError:
            raise NotFound(404, "NotFound", f"{kind.name} {namespace}/{name}") from None

    def list(self, kind: Kind, namespace: str, labels: str = "") -> list[Document]:
        found = [o for (k, n, _), o in self.objects.items() if (k, n) == (kind.name, namespace)]
        return [_copy(o) for o in found if _selects(labels, o["metadata"].get("labels") or {})]

    def create(self, kind: Kind, namespace: str, document: Mapping[str, Any]) -> Document:
        key = (kind.name, namespace, document["metadata"]["name"])
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", str(key))
        defaults = {"uid": f"uid-{key[2]}", "creationTimestamp": "2026-03-01T12:00:00Z", "resourceVersion": "1"}
        self.objects[key] = _copy({**document, "metadata": {**defaults, **document["metadata"]}})
        return _copy(self.objects[key])

    def patch(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = "") -> Document:
        assert subresource in ("", "status")
        old = self.get(kind, namespace, name)
        self.objects[kind.name, namespace, name] = _merged(old, patch)
        return self.get(kind, namespace, name)

    def delete(self, kind: Kind, namespace: str, name: str, policy: str = "Background", uid: str = "") -> None:
        assert policy in ("Background", "Foreground")
        assert not uid or self.get(kind, namespace, name)["metadata"]["uid"] == uid
        self.objects.pop((kind.name, namespace, name), None)


def _selects(selector: str, labels: Mapping[str, str]) -> bool:
    """`key=value` and `key`, which has to be there."""
    for term in filter(None, selector.split(",")):
        key, equals, value = term.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True


def _copy(document: Any) -> Any:
    return json.loads(json.dumps(document))


def _merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    kept = dict(old) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = _merged(kept.get(key), value)
    return kept
