"""Who created a Restatement, as far as the object shows it. Pure.

Kubernetes does not store a user's name with an object. Programs choose their own names as field managers, and every writer of
the object can set annotations. Only the API server's audit log has the user, under the object's UID.
"""

from collections.abc import Mapping
from typing import Any, Final

from lethe.contract.run import Manager, Provenance

from lethe_operator.resources.common import GROUP
from lethe_operator.resources.restatement import RestatementSpec

REQUESTED_BY: Final = f"{GROUP}/requested-by"
# Annotations and labels in which people, Argo CD, Flux and Helm give their names.
MARKS: Final = (
    REQUESTED_BY,
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/instance",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "helm.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/namespace",
    "kustomize.toolkit.fluxcd.io/name",
    "kustomize.toolkit.fluxcd.io/namespace",
    "meta.helm.sh/release-name",
    "meta.helm.sh/release-namespace",
)
TEXT_AT_MOST: Final = 256
MANAGERS_AT_MOST: Final = 10


def provenance_of(body: Mapping[str, Any], spec: RestatementSpec) -> Provenance | None:
    """The provenance of a Restatement whose rows must leave the storage; None for all others.

    Args:
        spec: Parsed from `body`.
    """
    if not spec.operation.always_evicts and spec.evict_by_seconds is None:
        return None
    metadata = body.get("metadata") or {}
    texts = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    managers = [
        Manager.model_validate(
            {
                "name": str(m.get("manager", ""))[:TEXT_AT_MOST],
                "operation": m.get("operation", ""),
                "time": m.get("time"),
            }
        )
        for m in metadata.get("managedFields") or ()
        if not m.get("subresource")
    ]
    return Provenance.model_validate(
        {
            "reason": spec.reason,
            "ticket": spec.ticket,
            "uid": str(metadata.get("uid") or ""),
            "created_time": metadata.get("creationTimestamp"),
            "managers": tuple(managers[:MANAGERS_AT_MOST]),
            "marks": {key: str(texts[key])[:TEXT_AT_MOST] for key in MARKS if key in texts},
        }
    )
