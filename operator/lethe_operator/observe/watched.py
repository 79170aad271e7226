"""Which objects the operator watches and lists. Pure."""

from collections.abc import Mapping
from typing import Final

from lethe_operator.kube import CONFIG_MAPS, JOBS, LEASES, PODS, SPARK_APPLICATIONS, ResourceKind
from lethe_operator.observe.trimmed import Body

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
