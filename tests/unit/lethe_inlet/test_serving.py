"""Which Datasets are read, and when their statuses are written."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lethe.base.errors import Verdict
from lethe.contract.status import SourceStatus
from lethe.kube import NotFound
from lethe_inlet import serving
from lethe_inlet.epochs import STARTING, failing
from lethe_inlet.epochs import reading as is_reading
from lethe_inlet.serving import Hangs, InletMetrics, Serving
from lethe_operator.reasons import Reason

from tests.support.clock import wait_until
from tests.support.resources import a_dataset_body

SOURCE = {"kafka": {"cluster": "main", "topics": ["flights"], "format": "JSON"}}


class FakeSource:
    """A source that waits until it is stopped."""

    made: "list[FakeSource]" = []

    def __init__(self, dataset: Any, kafka: Any, _clusters: Any, report: Any) -> None:
        self.dataset, self.kafka, self.report, self.stopped = dataset, kafka, report, threading.Event()
        FakeSource.made.append(self)

    def run(self) -> None:
        self.stopped.wait(30)


@dataclass
class FakeApi:
    bodies: list[dict[str, Any]] = field(default_factory=list)
    patches: list[Any] = field(default_factory=list)

    def list(self, *_: Any) -> list[dict[str, Any]]:  # type: ignore[valid-type]
        return self.bodies

    def patch(self, _kind: Any, _namespace: str, name: str, patch: Any, _subresource: str = "") -> dict[str, Any]:
        if all(b["metadata"]["name"] != name for b in self.bodies):
            raise NotFound(404, "NotFound", name)
        self.patches.append(patch["status"]["source"])
        return {}


def a_body(name: str = "flights", stalled: str = "False", observed: int | None = None, **spec: Any) -> dict[str, Any]:
    body = a_dataset_body(name, **{"source": SOURCE, **spec})
    generation = body["metadata"].setdefault("generation", 1)
    body["status"] = {
        "observedGeneration": generation if observed is None else observed,
        "conditions": [{"type": "Stalled", "status": stalled}],
    }
    return body


@pytest.fixture
def api() -> FakeApi:
    FakeSource.made.clear()
    return FakeApi([a_body()])


@pytest.fixture
def served(api: FakeApi) -> Serving:
    return Serving(api, "ns", dict, FakeSource)  # type: ignore[arg-type]


def test_an_accepted_dataset_is_read_once(served: Serving) -> None:
    for _ in range(3):
        served.look()

    assert [s.dataset.meta.name for s in FakeSource.made] == ["flights"]


@pytest.mark.parametrize(
    "body",
    [a_body(stalled="True"), a_body(observed=0), a_dataset_body("flights"), {"metadata": {"name": "x"}, "spec": {}}],
    ids=["stalled", "not seen by the operator", "without source", "invalid"],
)
def test_others_are_not_read(api: FakeApi, served: Serving, body: dict[str, Any]) -> None:
    api.bodies[:] = [body]
    served.look()

    assert FakeSource.made == []


@pytest.mark.parametrize("change", ["deleted", "changed", "stalled"])
def test_reading_stops_when_the_dataset_is_another(api: FakeApi, served: Serving, change: str) -> None:
    served.look()
    (first,) = FakeSource.made
    changed = a_body(source={"kafka": {**SOURCE["kafka"], "topics": ["delays"]}})
    api.bodies[:] = {"deleted": [], "changed": [changed], "stalled": [a_body(stalled="True")]}[change]
    served.look()
    assert first.stopped.is_set()

    def looked() -> bool:
        served.look()
        return len(FakeSource.made) == 2

    if change == "changed":
        wait_until(looked, 10)
        assert FakeSource.made[1].kafka.topics == ("delays",)
    served.stop()


def test_a_state_is_reported_when_it_changes_and_once_a_minute(
    api: FakeApi, served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.look()
    (source,) = FakeSource.made
    source.report(SourceStatus(reason=Reason.SOURCE_READ, epoch=1, lag=0))
    for _ in range(3):
        served.look()
    source.report(SourceStatus(reason=Reason.SOURCE_READ, epoch=2, lag=0))
    served.look()
    assert [p.get("epoch") for p in api.patches] == [None, 1, 2]

    monkeypatch.setattr(serving, "REPORT_SECONDS", 0.0)
    served.look()

    assert [p.get("epoch") for p in api.patches] == [None, 1, 2, 2]
    assert api.patches[-1]["reason"] == "SourceRead"


def test_a_source_that_hangs_ends_the_process(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    served.look()
    monkeypatch.setattr(serving, "HANGS_SECONDS", -1.0)

    with pytest.raises(Hangs, match="ns/flights has said nothing"):
        served.look()


def test_prometheus_sees_which_sources_are_read_and_why_one_is_not(api: FakeApi, served: Serving) -> None:
    api.bodies = [a_body(), a_body("other")]
    served.look()
    FakeSource.made[0].report(is_reading(STARTING))
    FakeSource.made[1].report(failing(STARTING, Verdict(Reason.SOURCE_DENIED, "no right")))

    metrics = InletMetrics(served.sources).registry

    def reading(dataset: str, reason: Reason) -> float | None:
        labels = {"namespace": "ns", "dataset": dataset, "reason": str(reason)}
        return metrics.get_sample_value("lethe_inlet_source_reading", labels)

    assert (reading("flights", Reason.SOURCE_READ), reading("other", Reason.SOURCE_DENIED)) == (1, 0)
    silent = metrics.get_sample_value("lethe_inlet_source_silent_seconds", {"namespace": "ns", "dataset": "flights"})
    assert silent is not None
    assert 0 <= silent < 5
    page = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
    assert {m.name for m in metrics.collect() if m.name.startswith("lethe_") and f"`{m.name}`" not in page} == set()
