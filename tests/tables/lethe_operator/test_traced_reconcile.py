"""A reconcile that starts a run begins its trace; the other reconciles leave none."""

from lethe import tracing

from tests.support.small_lake import FLIGHTS, SmallLake
from tests.support.trace_collector import traced


def test_the_run_gets_the_trace_of_its_reconcile(lake: SmallLake) -> None:
    lake.put("A")
    reconcile = lake.operator()

    with traced("lethe-operator") as collector:
        for _ in range(3):
            reconcile(FLIGHTS)
        tracing.stop()

    (run,) = lake.runs()
    started, around = collector.named("start Consolidation"), collector.named("reconcile Dataset")
    assert collector.names() == ["reconcile Dataset", "start Consolidation"]
    assert run.traceparent.startswith(f"00-{started.trace}-{started.id}-")
    assert (started.trace, started.parent) == (around.trace, around.id)
    assert started.attributes["lethe.run.id"] == run.run_id
    assert around.attributes == {"k8s.namespace.name": "ns", "lethe.object": "flights"}
