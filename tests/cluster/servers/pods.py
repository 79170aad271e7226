"""Servers of the tests' own in the cluster, beside PostgreSQL and S3: a pod with its files, and its Service. I/O only."""

import base64
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.cluster.kube import Cluster, Object
from tests.cluster.lake import SERVICES, find_services
from tests.support.clock import wait_until


@contextmanager
def server(
    cluster: Cluster, name: str, image: str, command: Sequence[str], files: Mapping[str, str], ports: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """A server for as long as the block lasts; pods reach it as `name.lethe-services`.

    Args:
        files: By name, what lies in /files.
        ports: By name, the ports that it listens on. It is up when it accepts connections on the first one.
    Yields: By name, the ports of the node that lead to these.
    """
    services = cluster.in_namespace(SERVICES)
    refs = [f"pods/{name}", f"services/{name}", f"configmaps/{name}"]
    for ref in refs:  # of an interrupted session
        services.delete(ref)
    services.apply(*_objects(name, image, command, files, ports))
    try:
        services.run("wait", f"pods/{name}", "--for=condition=Ready", "--timeout=120s", within_seconds=130)
        service = services.get(f"services/{name}")
        assert service is not None
        node_ports = {one["name"]: one["nodePort"] for one in service["spec"]["ports"]}
        node = find_services(cluster).node
        wait_until(lambda: all(_accepts(node, port) for port in node_ports.values()), 60)
        yield node_ports
    finally:
        services.run("delete", *refs, "--ignore-not-found", "--wait=false", "--grace-period=1")


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _objects(
    name: str, image: str, command: Sequence[str], files: Mapping[str, str], ports: Mapping[str, int]
) -> list[Object]:
    named = {"name": name, "labels": {"app": name}}
    content = {key: base64.b64encode(text.encode()).decode() for key, text in files.items()}
    container = {
        "name": "server",
        "image": image,
        "command": list(command),
        "envFrom": [{"secretRef": {"name": SERVICES}}],
        "ports": [{"name": key, "containerPort": port} for key, port in ports.items()],
        "readinessProbe": {"tcpSocket": {"port": next(iter(ports))}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [{"name": "files", "mountPath": "/files"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": "files", "configMap": {"name": name}}, {"name": "tmp", "emptyDir": {}}],
    }
    listed = [{"name": key, "port": port, "targetPort": key} for key, port in ports.items()]
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "binaryData": content},
        {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": named,
            "spec": {"type": "NodePort", "selector": {"app": name}, "ports": listed},
        },
    ]
