"""The reports of the benchmarks, made of given measurements."""

from pathlib import Path
from typing import Any

import pytest

from bench import consolidation, ledger, report, rivals, vacuum
from bench.report import Cell, Shares, View


def test_a_second_report_replaces_the_first_and_leaves_the_prose(tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.md"
    begin, end = report.begin("ledger"), report.end("ledger")
    file.write_text(f"# Benchmarks\n\nBefore.\n\n{begin}\nold\n{end}\n\nAfter.\n")

    report.insert(file, "ledger", "first\n")
    report.insert(file, "ledger", "second\n")

    text = file.read_text()
    assert "old" not in text
    assert "first" not in text
    assert text.startswith("# Benchmarks\n\nBefore.\n")
    assert text.endswith("After.\n")
    assert "second" in text


def test_a_goal_that_was_not_measured_is_not_met() -> None:
    failed = {"kind": rivals.LEDGER, "batches": 1, "error": "ValueError: no", "seconds": {"median": 0.1}}
    vectors = {"kind": rivals.DELETION_VECTORS, "batches": 1, "seconds": {"median": 0.9}}

    found = ledger.goals({"reverts-full": {"table": {"rows": 10}, "results": [failed, vectors]}})

    assert {(g["measured"], g["met"]) for g in found} == {(None, report.UNKNOWN)}


def test_a_report_names_each_goal_that_is_not_met() -> None:
    met, missed, unknown = report.goal("a", 1.0, 2.0), report.goal("b", 3.0, 2.0), report.goal("c", None, 2.0)

    assert report.goals_summary([met]) == ["Goals that are met: 1 of 1.", ""]
    assert report.goals_summary([met, missed, unknown]) == [
        "Goals that are met: 1 of 3. Missed:",
        "",
        "- b: goal 2, measured 3",
        "- c: goal 2, measured nothing",
        "",
    ]


def test_a_case_without_a_result_leaves_its_cell_empty() -> None:
    results = [{"way": way, "batches": n, "seconds": n} for way, n in (("a", 1), ("b", 2), ("a", 2))]

    table = report.rendered(View("Purges", ("purges",), ("way",), "batches"), {"purges": {"results": results}})

    assert table == (["way", "1", "2"], [["a", "1", "2"], ["b", "", "2"]])


def test_a_table_of_several_parts_names_the_part_of_each_row() -> None:
    parts = {name: {"results": [{"bytes": {"median": 3}, "held": 2}]} for name in ("x", "y")}

    table = report.rendered(View("Sizes", ("x", "y"), cells=(Cell("share", "bytes", per="held"),)), parts)

    assert table == (["part", "share"], [["x", "1.50"], ["y", "1.50"]])


def test_quantities_of_a_failed_result_are_not_shown() -> None:
    failed = {"kind": "a", "seconds": {"median": 1.0}, "error": "ValueError: no"}

    assert report.rendered(View("Reads", ("reads",), ("kind",)), {"reads": {"results": [failed]}})[1] == [["a", ""]]


def test_lists_of_seconds_are_shown_by_their_percentiles() -> None:
    part = {"results": [{"beside": {"seconds": [4.0, *[1.0] * 98, 2.0]}}]}

    table = report.rendered(Shares("Waits", ("waits",), {"beside": "beside.seconds"}), {"waits": part})

    assert table == (["seconds", "50 %", "95 %", "99 %", "most"], [["beside", "1", "1", "2", "4"]])


def test_every_view_names_parts_of_its_suite() -> None:
    for suite in (ledger.SUITE, vacuum.SUITE, consolidation.SUITE):
        assert {part for view in suite.views for part in view.parts} == set(suite.parts)


def test_growth_is_relative_to_the_pace_of_the_machine_where_that_is_known() -> None:
    """Commits that take twice as long while all else does so as well have not become slower."""
    windows = [
        {"commits": n, "seconds": {"median": seconds}, "pace_seconds": pace}
        for n, seconds, pace in ((10, 0.2, 0.01), (20, 0.3, 0.02), (30, 0.44, 0.02))
    ]
    unknown = [{k: v for k, v in w.items() if k != "pace_seconds"} for w in windows]

    assert consolidation.slowed({"results": windows}) == pytest.approx(1.1)
    assert consolidation.slowed({"results": unknown}) == pytest.approx(2.2)


def test_a_vacuum_that_rewrites_more_than_it_has_to_misses_its_goal() -> None:
    def purged(deleted: int, rewritten: int, held: int = 1000) -> dict[str, Any]:
        spread = dict.fromkeys(("min", "median", "max"), rewritten)
        return {"way": "vacuum", "deleted": deleted, "sorted": True, "bytes": spread, "held_bytes": held}

    slow = {"files": 9, "tombstones": 9, "sorted": True, "seconds": dict.fromkeys(("min", "median", "max"), 11.0)}
    fast = {**slow, "tombstones": 3, "seconds": dict.fromkeys(("min", "median", "max"), 1.0)}
    purges = [purged(1, 1000), purged(2, 1100), purged(3, 0), {"way": "vacuum", "deleted": 4, "error": "no"}]

    found = vacuum.goals({"purges-sorted": {"results": purges}, "scan": {"results": [slow, fast]}})

    assert [(g["measured"], g["met"]) for g in found] == [
        (1.0, report.YES),
        (1.1, report.NO),
        (0.0, report.YES),
        (None, report.UNKNOWN),
        (11.0, report.NO),
    ]
