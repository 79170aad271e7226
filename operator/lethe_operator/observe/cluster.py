"""The id of the cluster, for the claim of a buffer. I/O."""

import hashlib
import logging
from pathlib import Path
from typing import Final

from lethe_operator.kube import NAMESPACES, Kube, KubeError

log = logging.getLogger(__name__)

# The certificate of the cluster's certificate authority, which Kubernetes mounts into every pod.
AUTHORITY: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


def cluster_id(kube: Kube, authority: Path = AUTHORITY) -> str:
    """The UID of the namespace kube-system, which exists as long as the cluster. If the operator may not read it, a digest of the
    cluster's certificate authority; "": neither is available."""
    try:
        return str(kube.get(NAMESPACES, "", "kube-system")["metadata"]["uid"])
    except KubeError as e:
        log.info("cannot read the UID of the namespace kube-system: %s", e)
    try:
        return f"ca-{hashlib.sha256(authority.read_bytes()).hexdigest()[:32]}"
    except OSError:
        return ""
