"""What a run of chaos tells."""

from dataclasses import replace

from tests.cluster.chaos.plan import FaultKind
from tests.cluster.chaos.report import Injected, Report
from tests.model.acts import Revert, Vacuum

REPORT = Report(
    seed=7,
    duration_seconds=600,
    settled_seconds=42.34,
    acts=[Revert(("a",)), Vacuum(), Revert(("b",))],
    faults=[
        Injected(FaultKind.KILL_DRIVER, 12.34, 1.0, "pod-1"),
        Injected(FaultKind.EVICT, 20.0, 2.0, "", "no answer"),
    ],
    refused=["undo-1"],
    failed_vacuums=[],
    leftovers=[],
    failure="",
)


def test_the_line_has_the_seed_and_the_time_to_settle() -> None:
    assert REPORT.line() == "chaos seed=7 duration=600 s: 3 acts, 1 faults, 1 that could not happen, settled after 42 s"


def test_a_failed_run_has_no_time_to_settle() -> None:
    assert replace(REPORT, failure="a row is missing").line().endswith("FAILED")


def test_the_document_counts_acts_and_lists_faults() -> None:
    document = REPORT.document()

    assert (document["seed"], document["settledSeconds"], document["failure"]) == (7, 42.3, None)
    assert document["acts"] == {"Revert": 2, "Vacuum": 1}
    assert document["faults"] == [
        {"kind": "KILL_DRIVER", "atSeconds": 12.3, "seconds": 1.0, "target": "pod-1", "error": None},
        {"kind": "EVICT", "atSeconds": 20.0, "seconds": 2.0, "target": None, "error": "no answer"},
    ]
