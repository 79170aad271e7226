"""Which objects the operator watches and lists. Pure.

The part of a Kubernetes object that the operator keeps in memory. Pure.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

from lethe.kube import CONFIG_MAPS, JOBS, LEASES, PODS, SPARK_APPLICATIONS, ResourceKind

Body = Mapping[str, Any]

# Written by the API server and by kubectl. Together they are larger than the rest of many objects.
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# The parts of pods and of objects with pod templates that repeat what the operator itself has built.
_POD_PARTS: Final = frozenset(
    {
        *("containers", "initContainers", "ephemeralContainers", "volumes", "template"),
        *("driver", "executor", "arguments"),  # of a SparkApplication
    }
)


def trimmed(body: Body) -> dict[str, Any]:
    """An object without managedFields, without kubectl's annotation, and without containers and volumes of pods."""
    document = {"metadata": _metadata(body["metadata"])}
    for key, value in body.items():
        if key == "spec" and isinstance(value, Mapping):
            document[key] = {k: shared_strings(v) for k, v in value.items() if k not in _POD_PARTS}
        elif key == "data":
            document[key] = dict(value or {})
        elif key not in ("metadata", "apiVersion", "kind", "binaryData"):
            document[key] = shared_strings(value)
    return document


def trimmed_resource(body: Body) -> dict[str, Any]:
    """One of Lethe's resources, with its whole spec."""
    return {
        "metadata": _metadata(body["metadata"]),
        "spec": shared_strings(body.get("spec") or {}),
        "status": shared_strings(body.get("status") or {}),
    }


def shared_strings(value: Any) -> Any:
    """The same value with interned strings: thousands of objects have the same keys, labels and messages."""
    if isinstance(value, Mapping):
        return {sys.intern(key): shared_strings(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shared_strings(inner) for inner in value]
    return sys.intern(value) if isinstance(value, str) else value


def _metadata(metadata: Body) -> dict[str, Any]:
    metadata_kept = {key: shared_strings(value) for key, value in metadata.items() if key != "managedFields"}
    if _LAST_APPLIED in (metadata_kept.get("annotations") or {}):
        metadata_kept["annotations"] = {k: v for k, v in metadata_kept["annotations"].items() if k != _LAST_APPLIED}
    return metadata_kept


_MANAGED: Final = ("app.kubernetes.io/managed-by", "lethe")
# Also on the committer's mailbox, which the chart creates.
_NAME: Final = ("app.kubernetes.io/name", "lethe")
_LABELS: Final[Mapping[ResourceKind, tuple[str, str]]] = {
    JOBS: _MANAGED,
    SPARK_APPLICATIONS: _MANAGED,
    PODS: _MANAGED,
    CONFIG_MAPS: _NAME,
}
# The label selectors of kinds that are not Lethe's own.
SELECTORS: Final[Mapping[ResourceKind, str]] = {kind: f"{key}={value}" for kind, (key, value) in _LABELS.items()}


def is_watched(kind: ResourceKind, body: Body, committer: str) -> bool:
    """Whether the operator watches this object.

    Args:
        committer: Name of the committer's Lease; "": there is none.
    """
    metadata = body["metadata"]
    if kind is LEASES:
        return bool(committer) and metadata.get("name") == committer
    if kind not in _LABELS:
        return True
    key, value = _LABELS[kind]
    return bool((metadata.get("labels") or {}).get(key) == value)
