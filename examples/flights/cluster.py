"""Lethe's resources in the cluster that KUBECONFIG names. I/O only."""

import json
import subprocess

from lethe_local.demo.narrate import World, fail

KINDS = "datasets.lethe.dev,restatements.lethe.dev,vacuumpolicies.lethe.dev"


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["kubectl", "--namespace", "default", *arguments], input=stdin, capture_output=True, text=True, timeout=180
    )
    if done.returncode != 0:
        fail(f"kubectl {' '.join(arguments[:3])} …: {done.stderr.strip()}")
    return done.stdout


def gateway_url() -> str:
    """Where the gateway of `make install` listens: a port of the cluster's first node."""
    node = "{.items[0].status.addresses[?(@.type=='InternalIP')].address}"
    address = kubectl("get", "nodes", "-o", f"jsonpath={node}")
    port = kubectl("get", "service", "lethe-gateway", "-n", "lethe-system", "-o", "jsonpath={.spec.ports[0].nodePort}")
    return f"http://{address}:{port}"


def look() -> World:
    items = json.loads(kubectl("get", KINDS, "-o", "json"))["items"]
    return World({(item["kind"], item["metadata"]["name"]): item.get("status", {}) for item in items})
