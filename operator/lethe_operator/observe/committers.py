"""Observes the committer of a namespace. I/O."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from lethe_operator.kube import CONFIG_MAPS, LEASES, Kube, NotFound
from lethe_operator.resources.observed import CommitterView


def committer(kube: Kube, namespace: str, name: str, now: datetime) -> CommitterView:
    """Read its Lease, then its mailbox. A Dataset's ConfigMap that is read afterwards contains the result of each run that is no
    longer in the mailbox. Raises: KubeError."""
    try:
        lease = kube.get(LEASES, namespace, name)
        mailbox = kube.get(CONFIG_MAPS, namespace, name)
    except NotFound:
        return CommitterView(alive=False)
    return CommitterView(is_alive(lease.get("spec") or {}, now), frozenset(mailbox.get("data") or {}))


def is_alive(lease: Mapping[str, Any], now: datetime) -> bool:
    """Whether a Lease is held and was renewed within its own duration."""
    renewed, seconds = lease.get("renewTime"), lease.get("leaseDurationSeconds")
    if not lease.get("holderIdentity") or not renewed or not seconds:
        return False
    return now < datetime.fromisoformat(str(renewed).replace("Z", "+00:00")) + timedelta(seconds=int(seconds))
