"""The operator says when its image and the image of runs are of different versions, and what to do."""

from lethe.contract.status import RunEntry
from lethe.kube import EVENTS
from lethe_operator.metrics import Metrics
from lethe_operator.reasons import Reason
from lethe_operator.runs.launch import RunVersions
from lethe_operator.runs.retry import ended_versions

from tests.support.fake_cluster import FakeCluster
from tests.support.resources import a_dataset, a_result, a_run, a_vacuum, an_attempt

OWN, OTHER = "0.1.0+aaaaaaaa", "0.1.0+bbbbbbbb"


def entry(name: str, phase: str) -> RunEntry:
    return RunEntry(name=name, kind="Consolidation", phase=phase)


def test_each_other_version_is_reported_once_per_namespace_and_the_metric_shows_the_last_run() -> None:
    server, metrics = FakeCluster(), Metrics()
    versions = RunVersions(metrics, "registry/spark:1", OWN)
    dataset = a_dataset().meta

    def skew() -> float | None:
        return metrics.registry.get_sample_value("lethe_version_skew", {"namespace": "ns"})

    versions.report(server, dataset, [OWN])  # type: ignore[arg-type]
    assert (skew(), server.list(EVENTS, "ns")) == (0, [])
    for _ in range(3):
        versions.report(server, dataset, [OTHER])  # type: ignore[arg-type]
        assert skew() == 1
    (event,) = server.list(EVENTS, "ns")
    assert event["reason"] == Reason.VERSION_SKEW
    assert f"reported version {OTHER} of Lethe, and the operator has {OWN}" in event["note"]
    assert "registry/spark:1" in event["note"]
    assert "image.operator and image.spark to the same release" in event["note"]

    versions.report(server, dataset, [""])  # type: ignore[arg-type]
    assert "reported version none (it is older)" in server.list(EVENTS, "ns")[1]["note"]
    versions.report(server, dataset, [OWN])  # type: ignore[arg-type]
    assert skew() == 0


def test_a_process_that_acts_no_longer_shows_no_version_of_the_last_run() -> None:
    """The next leader does: the alert would fire as long as the process lives."""
    metrics = Metrics()
    for namespace in ("ns", "other"):
        metrics.version_skew(namespace, True)

    metrics.acts_in("ns", False)

    found = [metrics.registry.get_sample_value("lethe_version_skew", {"namespace": n}) for n in ("ns", "other")]
    assert found == [None, 1]


def test_only_runs_that_have_just_ended_and_left_a_result_are_compared() -> None:
    spec = a_vacuum()
    attempts = [an_attempt(spec, number=n, result=a_result(spec, attempt=n, version=f"v{n}")) for n in (1, 2)]
    lost = an_attempt(spec, number=3)
    runs = [a_run(spec, *attempts, lost)]
    first, second, third = (a.job for a in (*attempts, lost))
    old = [entry(first, "Succeeded"), entry(second, "Committing"), entry(third, "Starting")]
    new = [entry(first, "Succeeded"), entry(second, "Failed"), entry(third, "Failed")]

    assert ended_versions(runs, old, new) == {"v2"}
    assert ended_versions(runs, new, new) == frozenset()
