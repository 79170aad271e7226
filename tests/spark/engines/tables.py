"""The tables that engines read: three batches in the same files, of which one was reverted. And the page about what they find."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from lethe.contract.settings import Deletes
from pyspark.sql import SparkSession

from tests.spark.engines.page import Cell, Kind, Matrix, Outcome, cell, rendered, replaced
from tests.spark.engines.readers import stable
from tests.spark.parameters import MODES
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Story, of_batches
from tests.support.lake import Lake

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "engines.md"
WRITE: Final = os.environ.get("LETHE_WRITE_ENGINES", "")
ROWS: Final = 100  # of a batch
KINDS: Final = [(mode, v) for mode in MODES for v in ([mode.named.format_version] if mode.named else [2, 3])]
EVERY, LEFT = ([row[:2] for row in of_batches(*ids, rows=ROWS).elements()] for ids in (("A", "B", "C"), ("A", "C")))

Tables = dict[Kind, Native]
Found = Iterable[tuple[str, dict[Kind, Cell]]]


def measured(spark: SparkSession, lake: Lake, read: Callable[[Tables], Found]) -> dict[str, dict[Kind, Cell]]:
    """What each engine finds before and after a vacuum. `read` reads tables with all of them."""
    stories = [reverted(spark, lake, mode, v) for mode, v in KINDS]
    matrix: dict[str, dict[Kind, Cell]] = {}
    for vacuumed in (False, True):
        if vacuumed:
            for story in stories:
                story.vacuum()
        for engine, found in read({Kind(s.deletes, s.format_version, vacuumed): s for s in stories}):
            matrix.setdefault(engine, {}).update(found)
    return matrix


def check(matrix: Matrix, but: str = "") -> None:
    """No engine finds anything but the rows that are left, or, by design, all rows of a ledger. `but`: one that knows it."""
    for engine, cells in matrix.items():
        for kind, found in cells.items():
            assert found.outcome is not Outcome.WRONG, (engine, kind)
            if engine != but and kind.deletes == Deletes.LEDGER:
                expected = Outcome.RIGHT if kind.vacuumed else Outcome.ALL_ROWS
                assert found.outcome in (expected, Outcome.REFUSES), (engine, kind)


def compare(part: str, matrix: Matrix, versions: Mapping[str, str]) -> None:
    """The page says the same, or is written."""
    page = replaced(PAGE.read_text(), part, rendered(matrix, versions))
    if WRITE:
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "run `make docs-engines`, and look at what has changed"


def reverted(spark: SparkSession, lake: Lake, mode: Deletes, format_version: int) -> Native:
    """Three batches in the same files; the rows of B are reverted."""
    name = Story.begin(spark, lake).name
    story = Native(spark, lake, name, format_version=format_version, deletes=mode)
    story.put("A", "B", "C", rows=ROWS)
    story.consolidate("A", "B", "C")
    assert story.revert("B").rows_deleted == ROWS
    return story


def cell_of(read: dict[str, Any]) -> Cell:
    return Cell(Outcome.REFUSES, stable(read["error"])) if "error" in read else cell(read["rows"], LEFT, EVERY)
