"""What a failed cluster test leaves in its report: resources, events, and the last lines of logs. I/O only."""

from tests.cluster.install import OPERATOR, SYSTEM
from tests.cluster.kube import Cluster, Refused

LINES = 120


def dump(cluster: Cluster) -> str:
    system = cluster.in_namespace(SYSTEM)
    asked = [
        (
            "Lethe's resources",
            cluster,
            ["get", "datasets,restatements,vacuumpolicies", "-o", "yaml", "--show-managed-fields=false"],
        ),
        ("jobs and pods", cluster, ["get", "jobs,pods", "-o", "wide"]),
        ("events", cluster, ["get", "events", "--sort-by=.lastTimestamp"]),
        ("the operator", system, ["get", "pods", "-o", "wide"]),
        ("the operator's log", system, ["logs", OPERATOR, f"--tail={LINES}"]),
        ("the operator's log before its restart", system, ["logs", OPERATOR, f"--tail={LINES}", "--previous"]),
    ]
    parts = [_section(title, where, arguments) for title, where, arguments in asked]
    try:
        pods = cluster.list("pods", "app.kubernetes.io/component=run")
    except Refused as e:
        return "\n".join([*parts, str(e)])
    for pod in pods:
        name = pod["metadata"]["name"]
        parts.append(_section(f"the log of {name}", cluster, ["logs", name, f"--tail={LINES}"]))
    return "\n".join(parts)


def _section(title: str, cluster: Cluster, arguments: list[str]) -> str:
    try:
        text = cluster.run(*arguments, within_seconds=30)
    except Refused as e:
        text = str(e)
    return f"--- {title} ---\n{text}"
