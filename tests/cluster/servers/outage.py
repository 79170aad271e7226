"""PostgreSQL or S3 is away for a while. I/O only."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.kube import Cluster
from tests.cluster.lake import SERVICES


@contextmanager
def away(cluster: Cluster, app: str) -> Iterator[None]:
    """Stop a service; its data stays on the node."""
    services = cluster.in_namespace(SERVICES)
    services.run("scale", f"deployment/{app}", "--replicas=0")
    services.run("wait", "--for=delete", "pod", "-l", f"app={app}", "--timeout=60s")
    try:
        yield
    finally:
        services.run("scale", f"deployment/{app}", "--replicas=1")
        services.run("rollout", "status", f"deployment/{app}", "--timeout=120s", within_seconds=130)
