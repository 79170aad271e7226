"""Lethe's resources in the cluster that KUBECONFIG names. I/O only."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lethe_local.demo.story import World, fail

KINDS = "datasets.lethe.dev,restatements.lethe.dev,vacuumpolicies.lethe.dev"


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["kubectl", "--namespace", "default", *arguments], input=stdin, capture_output=True, text=True, timeout=180
    )
    if done.returncode != 0:
        fail(f"kubectl {' '.join(arguments[:3])} …: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def gateway_url() -> Iterator[str]:
    """The gateway on a port of this machine.

    Without TLS the console takes tokens only there, and the node of kind has an address only on Linux.
    """
    command = ["kubectl", "port-forward", "--namespace", "lethe-system", "service/lethe-gateway", ":443"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
            if found is None:
                fail("kubectl port-forward to service/lethe-gateway did not start")
            assert found is not None
            yield f"http://localhost:{found.group(1)}"
        finally:
            forward.terminate()


def own_image() -> str:
    """The image of the operator, which has Python and Lethe's libraries: nothing is downloaded for the demo."""
    image = "{.spec.template.spec.containers[0].image}"
    return kubectl("get", "deployment", "lethe-operator", "-n", "lethe-system", "-o", f"jsonpath={image}")


def start_kafka(manifest: Path, image: str) -> None:
    kubectl("apply", "-f", "-", stdin=manifest.read_text().replace("image: lethe-kafka", f"image: {image}"))
    kubectl("rollout", "status", "deployment/kafka", "--timeout=120s")


def produce(topic: str, messages: Iterable[str]) -> None:
    """Create a topic with one partition and send messages to it, by a pod."""
    script = (
        "import sys\n"
        "from confluent_kafka import Producer\n"
        "from confluent_kafka.admin import AdminClient, NewTopic\n"
        "at = {'bootstrap.servers': 'kafka:9092'}\n"
        "admin = AdminClient(at)\n"
        "topic = sys.argv[1]\n"
        "if topic not in admin.list_topics(timeout=30).topics:\n"
        "    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)\n"
        "producer = Producer(at)\n"
        "for line in sys.stdin:\n"
        "    producer.produce(topic, line.strip(), partition=0)\n"
        "sys.exit(producer.flush(60))\n"
    )
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "producer",
        "image": own_image(),
        "command": ["python", "-c", script, topic],
        "stdin": True,
        "stdinOnce": True,
        "securityContext": restricted,
    }
    spec = {
        "containers": [container],
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    how = ["--rm", "--stdin", "--quiet", "--restart=Never", f"--image={container['image']}"]
    overrides = f"--overrides={json.dumps({'apiVersion': 'v1', 'spec': spec})}"
    kubectl("run", "producer-of-messages", *how, overrides, stdin="\n".join(messages) + "\n")


def start_receiver(manifest: Path) -> None:
    """Start the receiver of status events."""
    kubectl("apply", "-f", "-", stdin=manifest.read_text().replace("python:3.13-slim", own_image()))
    kubectl("rollout", "status", "deployment/receiver", "--timeout=120s")


def received() -> Counter[str]:
    """Status events by type, each counted once for each subject."""
    lines = set(kubectl("logs", "deployment/receiver", "--tail=-1").splitlines())
    return Counter(line.split(" ")[0].removeprefix("dev.lethe.") for line in lines)


def look() -> World:
    items = json.loads(kubectl("get", KINDS, "-o", "json"))["items"]
    return World({(item["kind"], item["metadata"]["name"]): item.get("status", {}) for item in items})
