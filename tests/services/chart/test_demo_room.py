"""What the demo's cluster requests of its node leaves room for a user's first acts."""

from typing import Any

import pytest
import yaml
from kubernetes.utils import parse_quantity
from lethe_operator.resources.observed import Engine
from lethe_operator.runs import pod
from lethe_operator.runs.job import warm_driver_job
from lethe_operator.runs.pod import size
from lethe_operator.settings import from_environment

from tests.services.chart.chart import CATALOGS, ROOT, environment, helm, render

FLIGHTS = ROOT / "examples/flights"
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
MIB = 1024**2
# Of the smallest machine that the documentation names.
NODE = {"cpu": 2.0, "memory": 8.0 * 1024 * MIB}
# What the pods of kind's control plane request, with its DNS and network, and what a kubelet keeps of the memory.
SYSTEM = {"cpu": 0.95, "memory": 290.0 * MIB + 100.0 * MIB}


def values() -> dict[str, Any]:
    """Of dev/install.sh for `make demo-cluster`."""
    on = {name: {"enabled": True} for name in ("warmDrivers", "gateway")}
    events = {"enabled": True, "http": {"url": "http://receiver.default:8080/"}}
    inlet = {"enabled": True, "clusters": {"main": {"properties": {"bootstrap.servers": "kafka.default:9092"}}}}
    return {**CATALOGS, **on, "events": events, "inlet": inlet, "watchNamespaces": ["default"]}


def chart() -> list[dict[str, Any]]:
    return render(values(), "--values", str(ROOT / "dev/small-cluster.yaml"))


def services() -> list[dict[str, Any]]:
    images = dict.fromkeys(("postgres", "versitygw", "spark"), "an-image")
    done = helm("template", "lethe-services", str(ROOT / "dev/services"), values={"images": images})
    assert done.returncode == 0, done.stderr
    return [d for d in yaml.safe_load_all(done.stdout) if d]


def manifests() -> list[dict[str, Any]]:
    return [d for name in ("kafka", "receiver") for d in yaml.safe_load_all((FLIGHTS / f"{name}.yaml").read_text())]


def requested(objects: list[dict[str, Any]], resource: str) -> float:
    """By all replicas of the workloads that stay."""
    return sum(
        o["spec"].get("replicas", 1) * of_template(o["spec"]["template"], resource)
        for o in objects
        if o["kind"] in WORKLOADS
    )


def of_template(template: dict[str, Any], resource: str) -> float:
    """A container that requests nothing would be a gap in the sum."""
    containers = template["spec"]["containers"]
    return float(sum(parse_quantity(c["resources"]["requests"][resource]) for c in containers))


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_the_demo_its_warm_driver_and_a_run_or_the_one_with_values_fit_on_two_cpus_and_8_gib(resource: str) -> None:
    settings = from_environment(environment(chart()))
    warm, with_values = (
        of_template(warm_driver_job("default", "uid", settings, engine)["spec"]["template"], resource)
        for engine in (Engine.WARM_DRIVER, Engine.VALUES_DRIVER)
    )
    run = float(getattr(size(0, settings.run_template).driver, resource))

    stays = requested([*chart(), *services(), *manifests()], resource)

    assert warm > 0
    assert run > 0
    assert stays + warm + max(run, with_values) + SYSTEM[resource] <= NODE[resource]


def test_its_runs_may_use_as_much_as_those_of_the_charts_own_values() -> None:
    """They only request less: requests are what the scheduler adds up."""
    small, own = from_environment(environment(chart())), from_environment(environment(render(values())))

    for one in (small, own):
        driver = size(0, one.run_template).driver
        assert driver.cpu * one.run_limits.cpu_factor == pytest.approx(2, abs=0.11)
        assert driver.cores == size(0, own.run_template).driver.cores
    assert pod.size(0, small.run_template).driver.memory == pod.size(0, own.run_template).driver.memory
