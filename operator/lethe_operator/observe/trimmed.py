"""The part of a Kubernetes object that the operator keeps in memory. Pure."""

import sys
from collections.abc import Mapping
from typing import Any, Final

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
    found = {"metadata": _metadata(body["metadata"])}
    for key, value in body.items():
        if key == "spec" and isinstance(value, Mapping):
            found[key] = {k: shared_strings(v) for k, v in value.items() if k not in _POD_PARTS}
        elif key == "data":
            found[key] = dict(value or {})
        elif key not in ("metadata", "apiVersion", "kind", "binaryData"):
            found[key] = shared_strings(value)
    return found


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
    found = {key: shared_strings(value) for key, value in metadata.items() if key != "managedFields"}
    if _LAST_APPLIED in (found.get("annotations") or {}):
        found["annotations"] = {k: v for k, v in found["annotations"].items() if k != _LAST_APPLIED}
    return found
