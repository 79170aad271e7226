"""PostgreSQL or S3 is away for a while. I/O only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.install import image
from tests.cluster.kube import Cluster
from tests.cluster.lake import RELAYS, SERVICES

RELAY = """
import asyncio, sys

async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()

async def forward(reader, writer):
    try:
        far_reader, far_writer = await asyncio.open_connection(sys.argv[1], sys.argv[2])
    except OSError:
        return writer.close()
    await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

async def main():
    await (await asyncio.start_server(forward, port=int(sys.argv[2]))).serve_forever()

asyncio.run(main())
"""


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


@contextmanager
def relays(cluster: Cluster) -> Iterator[None]:
    """Deployments between a Dataset of the catalog `relayed` and the services: without one, its service is away for that Dataset
    alone."""
    services = cluster.in_namespace(SERVICES)
    refs = [f"{kind}/{name}" for name, _ in RELAYS.values() for kind in ("deployment", "service")]
    for service, (name, port) in RELAYS.items():
        services.apply(*_relay(name, f"{service}.{SERVICES}", port))
    try:
        for name, _ in RELAYS.values():
            services.run("rollout", "status", f"deployment/{name}", "--timeout=120s", within_seconds=130)
        yield
    finally:
        services.run("delete", *refs, "--ignore-not-found", "--wait=false")


def _relay(name: str, host: str, port: int) -> list[dict[str, Any]]:
    container = {
        "name": "relay",
        "image": image("LETHE_OPERATOR_IMAGE"),
        "command": ["python", "-c", RELAY, host, str(port)],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
    }
    spec = {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0, "containers": [container]}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    selector = {"app": name}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {"replicas": 1, "selector": {"matchLabels": selector}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": selector, "ports": [{"port": port, "targetPort": port}]},
        },
    ]
