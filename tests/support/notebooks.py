"""The table that the notebooks of the documentation read: that of `lethe local`, with a batch that was taken back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from lethe.ledger.ledger import BatchState

from tests.support.builders import a_batch
from tests.support.places import Places
from tests.support.resources import a_dataset_body
from tests.support.tables import commit_delta, new_table, tombstone

SCHEMA = pa.schema([("carrier", pa.string()), ("day", pa.date32()), ("delay", pa.int32()), ("batch_id", pa.string())])
BATCHES = {
    "2026-03-01": [("AA", 4), ("DL", -3), ("UA", 51), ("UA", 12)],
    "2026-03-02": [("AA", 900), ("DL", 900), ("UA", 900)],  # a broken sensor
    "2026-03-02.corrected": [("AA", 35), ("DL", 0), ("UA", 61)],
}
REVERTED = "2026-03-02"


@contextmanager
def notebook_lake(home: Path) -> Iterator[None]:
    """Nothing is configured, and `lethe local` runs."""
    with pytest.MonkeyPatch.context() as patch:
        places = Places.none(home, patch)
        places.cluster(a_dataset_body("flights", table={"catalog": "local", "name": "air.flights"}))
        with places.lethe_local("local") as catalog:
            table = new_table(catalog, schema=SCHEMA)
            for batch, flights in BATCHES.items():
                table.append(rows(batch, flights))
                commit_delta(table, set_batches=(a_batch(batch, rows=len(flights)),))
            reverted = replace(a_batch(REVERTED, rows=len(BATCHES[REVERTED])), state=BatchState.REVERTED, run="f" * 32)
            commit_delta(table, add_tombstones=(tombstone(table, REVERTED),), set_batches=(reverted,))
            yield


def rows(batch: str, flights: list[tuple[str, int]]) -> pa.Table:
    day = date.fromisoformat(batch[:10])
    found = [{"carrier": carrier, "day": day, "delay": delay, "batch_id": batch} for carrier, delay in flights]
    return pa.Table.from_pylist(found, SCHEMA)
