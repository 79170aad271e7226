"""The tables that engines read, in each stage, and the page about what they find."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lethe.contract.settings import Deletes
from lethe.iceberg import catalogs
from pyspark.sql import SparkSession

from tests.spark.engines.page import Cell, Kind, Matrix, Outcome, Place, cell, rendered, replaced
from tests.spark.engines.stages import BEGIN, STAGES, Stage
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Story
from tests.support.engines.readers import stable
from tests.support.lake import CATALOG, Lake

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "engines.md"
WRITE: Final = os.environ.get("LETHE_WRITE_ENGINES", "")
KINDS: Final = [Kind(deletes, v) for deletes in (Deletes.AUTO, Deletes.LEDGER) for v in (2, 3)]


@dataclass(frozen=True)
class Reading:
    """What an engine is to read: a table at its head, or at a snapshot before."""

    place: Place
    stage: Stage
    """Whose rows are expected."""
    name: str
    """Of the table as it was after the stage, in the catalog of the tests."""
    metadata: str
    location: str
    snapshot_id: int | None = None
    """None: the head."""

    def cell(self, read: Mapping[str, Any]) -> Cell:
        """What the answer of an engine means: `{"rows": …}` or `{"error": …}`."""
        if "error" in read:
            return Cell(Outcome.REFUSES, stable(read["error"]))
        return Cell(cell(read["rows"], self.stage)) if read["rows"] is not None else Cell(Outcome.NO_TIME_TRAVEL)


def played(spark: SparkSession, lake: Lake) -> list[Reading]:
    """A table of each kind goes through all stages. What it is after each of them stays readable under a name of its own."""
    return [reading for kind in KINDS for reading in _readings(spark, lake, kind)]


def _readings(spark: SparkSession, lake: Lake, kind: Kind) -> list[Reading]:
    name = Story.begin(spark, lake).name
    story = Native(spark, lake, name, format_version=kind.format_version, deletes=kind.deletes)
    BEGIN.change(story)
    before, found = BEGIN, []
    for number, stage in enumerate(STAGES):
        snapshot_id = story.head().snapshot_id
        stage.change(story)
        table = story.table()
        own, metadata = f"{name}_{number}", table.metadata_location
        catalogs.load(CATALOG).register_table(own, metadata)
        for at, of in ((None, stage), (snapshot_id, before)):
            place = Place(kind, stage.name, before=at is not None)
            found.append(Reading(place, of, own, metadata, table.location(), at))
        before = stage
    return found


def check(matrix: Matrix, readings: Sequence[Reading], knows_ledgers: str = "") -> None:
    """No engine finds other rows than the native deletes leave, or than all, if there are only tombstones.

    Args:
        knows_ledgers: The engine that always finds the right rows.
    """
    for engine, cells in matrix.items():
        for reading in readings:
            found = cells[reading.place].outcome
            without_ledger = reading.stage.found_by_others(reading.place.kind.deletes)
            wanted = {cell(list(without_ledger.elements()), reading.stage), Outcome.REFUSES}
            if reading.snapshot_id is not None:
                wanted.add(Outcome.NO_TIME_TRAVEL)
            assert found in ({Outcome.RIGHT} if engine == knows_ledgers else wanted), (engine, reading.place, found)


def compare(part: str, matrix: Matrix, versions: Mapping[str, str]) -> None:
    """The page says the same, or is written."""
    page = replaced(PAGE.read_text(), part, rendered(matrix, versions, [s.name for s in STAGES]))
    if WRITE:
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "run `make docs-engines`, and look at what has changed"
