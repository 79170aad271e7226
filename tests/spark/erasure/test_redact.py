"""Redact: the rows stay where they are, with other values, and the old values leave the storage for good."""

import hashlib
import hmac
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError, TransientError
from lethe.contract.settings import Deletes, RedactionMethod
from pyiceberg.manifest import DataFile
from pyspark.sql import SparkSession

from tests.spark.parameters import races, some, tuples
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import last_query, plans_of, row, table_folder
from tests.spark.support.erasures import DUE, check_closed, the_record
from tests.spark.support.every_object import objects_with, of_folder
from tests.spark.support.redacts import (
    HASH,
    KEY,
    NULL,
    a_redact,
    a_redact_of,
    as_redacted,
    hashed,
    people_by_row,
    personal,
    unredacted,
)
from tests.spark.support.story import (
    Row,
    local,
    of_batches,
    reasons,
    rehearsal,
    results_by_name,
    some_rows,
)
from tests.spark.support.trips import Trips, customer, ticket
from tests.support.builders import a_request
from tests.support.lake import ROWS, Lake

Make = Callable[..., Trips]
GONE, OTHER, NOBODY = row("B", 1), row("D", 2), row("A", 0)
"""Of different days; the third one has neither a customer nor passengers."""
CHOSEN = (GONE, OTHER, NOBODY)
EVERYBODY = [v for _, v, _ in of_batches("A", "B", "D")]


@pytest.fixture
def make(spark: SparkSession, lake: Lake) -> Make:
    """Batches A, B and D are in a table of this format version."""

    @built_once
    def begin(version: int, partition_by: tuple[str, ...] = ("day",), **properties: str) -> Trips:
        return Trips.begin(spark, lake, partition_by, format_version=version, properties=properties).filled()

    return begin


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def trips(request: pytest.FixtureRequest, make: Make) -> Trips:
    return make(request.param)


def expected(*chosen: int, of: list[int] = EVERYBODY) -> dict[int, object]:
    return {v: as_redacted(v) if v in chosen else unredacted(v) for v in of}


@pytest.mark.parametrize(
    ("version", "format_name", "deletes"),
    tuples(
        [(v, f, d) for v in (2, 3) for f in ("parquet", "orc", "avro") for d in (Deletes.AUTO, Deletes.LEDGER)],
        (3, "parquet", Deletes.AUTO),
        (2, "orc", Deletes.AUTO),
        (3, "avro", Deletes.LEDGER),
    ),
)
def test_a_redact_ends_with_the_old_values_gone_and_every_row_there(
    make: Make, version: int, format_name: str, deletes: Deletes
) -> None:
    """In one snapshot. When the erasure is verified, no object of the table holds an old value."""
    full = {"write.metadata.metrics.default": "full", "write.format.default": format_name}
    story, chosen = make(version, **full), [v for _, v, _ in CHOSEN]
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.avro.compression-codec' = 'uncompressed')")
    redact = a_redact(story, *map(ticket, chosen), "nobody", evict_by_seconds=DUE)
    old = [text for v in chosen for text in personal(v)]
    assert objects_with(of_folder(table_folder(story)), *old) != []
    snapshots = len(story.snapshots())

    (result,) = story.run(story.restatement(redact, deletes=deletes)).requests

    assert (result.succeeded, result.rows_redacted, result.rows_erased) == (True, 3, 0), result.message
    assert len(story.snapshots()) == snapshots + 1
    assert people_by_row(story) == expected(*chosen)
    assert story.obligations() == [("ns/redact/0", story.field_id("customer.email"))]
    vacuumed = story.vacuum()
    check_closed(story, vacuumed)
    assert objects_with(of_folder(table_folder(story)), *old) == []
    assert people_by_row(story) == expected(*chosen)
    assert set(story.states().values()) == {"promoted"}
    record = the_record(vacuumed)
    assert record["restatement"]["redaction"] == {
        "columns": [
            {"column": "customer.email", "method": "SetNull"},
            {"column": "passengers.element.email", "method": "KeyedHash"},
            {"column": "ticket.id", "method": "Constant"},
        ],
        "hash-key": "hash-2026/key",
    }
    assert (record["restatement"]["operation"], record["restatement"]["rows-redacted"]) == ("Redact", 3)


# --- which rows, and what happens to them later ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "deletes"),
    tuples([(v, d) for v in (2, 3) for d in (Deletes.AUTO, Deletes.LEDGER)], (3, Deletes.LEDGER), (2, Deletes.AUTO)),
)
def test_rows_of_a_reverted_batch_are_redacted_too_and_no_undo_shows_an_old_value(
    make: Make, version: int, deletes: Deletes
) -> None:
    """Rows that only the ledger hides come back redacted. Those that native deletes hide are gone, and the Undo says so."""
    story = replace(make(version), deletes=deletes)
    story.revert("D")
    redact = a_redact(story, ticket(GONE[1]), ticket(OTHER[1]), evict_by_seconds=DUE)

    result = story.restate(redact)

    assert result.succeeded, result.message
    assert result.rows_redacted == (1 if deletes is Deletes.AUTO else 2)
    undone = story.undo()
    if deletes is Deletes.AUTO:
        assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
        assert people_by_row(story) == expected(GONE[1], of=[v for _, v, _ in of_batches("A", "B")])
    else:
        assert (undone.succeeded, undone.rows_restored) == (True, 4)
        assert people_by_row(story) == expected(GONE[1], OTHER[1])
    check_closed(story, story.vacuum())
    assert objects_with(of_folder(table_folder(story)), *personal(GONE[1]), *personal(OTHER[1])) == []


@pytest.mark.parametrize("version", some([2, 3], 3))
def test_a_redact_of_a_batch_keeps_it_and_what_comes_later_reaches_its_rows(make: Make, version: int) -> None:
    """The ledger knows no deleted batch for it, so the erasure ends although the rows stay."""
    story, of_b = make(version), [v for _, v, _ in of_batches("B")]
    since, lineage = story.head().snapshot_id, lineage_of(story)

    result = story.restate(a_redact_of(story, "B", evict_by_seconds=DUE))

    assert (result.succeeded, result.rows_redacted) == (True, 4), result.message
    assert people_by_row(story) == expected(*of_b)
    with pytest.raises(InputError, match=r"ErasedBetween: .* erased or redacted records"):
        lethe.scan(story.full_name, since=since)
    after, sequence_number = lineage_of(story), story.head().sequence_number
    assert {v: i for v, (i, _) in after.items()} == {v: i for v, (i, _) in lineage.items()}
    assert {v for v, (_, updated) in after.items() if updated == sequence_number} == (
        set(of_b) if version == 3 else set()
    )
    kept = story.ledger().requests["ns/redact/0"].result
    assert (kept.get("batchIds", []), kept["redaction"]["batchIds"]) == ([], ["B"])
    assert story.states() == dict.fromkeys("ABD", "promoted")
    refused = story.undo("redact", name="back")
    assert (refused.succeeded, refused.reason) == (False, "NotUndoable")
    assert "A Redact cannot be undone" in refused.message
    vacuumed = story.vacuum()
    check_closed(story, vacuumed)
    named = the_record(vacuumed)["restatement"]
    assert (named["named-by"], named["batches"], named["rows-redacted"]) == ("batches", 1, 4)
    assert objects_with(of_folder(table_folder(story)), *(text for v in of_b for text in personal(v))) == []
    story.revert("B")
    story.check_reads(of_batches("A", "D"))
    assert story.undo(name="again").succeeded
    assert people_by_row(story) == expected(*of_b)


def lineage_of(story: Trips) -> dict[int, tuple[int, int]]:
    """Of the rows by `v`: their ids, and the sequence number of their last change. Format version 2 has neither."""
    if story.format_version < 3:
        return {}
    rows = story.spark.table(story.full_name).select("v", "_row_id", "_last_updated_sequence_number").collect()
    return {r["v"]: (r["_row_id"], r["_last_updated_sequence_number"]) for r in rows}


def test_a_redact_of_a_batch_that_is_not_in_the_table_is_refused(make: Make) -> None:
    """It would redact nothing of what is promoted later, also if the batch waits in the buffer."""
    story = make(3)
    story.put("late")

    results = story.restate_all(
        a_redact_of(story, "late"), a_redact_of(story, "B", "nowhere", name="other"), a_request("revert")
    )

    assert reasons(results) == {"redact": "UnknownBatches", "other": "UnknownBatches", "revert": ""}
    assert "1 of 1 batch ids are not in the table: 'late'" in results_by_name(results)["redact"].message
    assert people_by_row(story) == expected(of=[v for _, v, _ in of_batches("B", "D")])


def test_requests_of_a_group_redact_and_erase_as_if_one_by_one(make: Make) -> None:
    """A row may be redacted twice, and one that is erased is gone. A search by a redacted column waits for the new values."""
    story = make(3)
    first = a_redact(story, ticket(GONE[1]), ticket(OTHER[1]), columns={"customer.email": NULL}, name="a")
    second = a_redact(
        story, ticket(GONE[1]), columns={"passengers.element.email": "nobody", "customer.country": HASH}, name="b"
    )
    erase = story.an_erase(ticket(OTHER[1]), column="ticket.id", name="c")
    by_email = story.an_erase(customer(GONE[1]), column="customer.email", name="d")

    done = results_by_name(story.restate_all(first, second, erase, by_email))
    again = story.restate(by_email)

    assert {n: (r.rows_redacted, r.rows_erased, r.reason) for n, r in done.items()} == {
        "a": (1, 0, ""),
        "b": (1, 0, ""),
        "c": (0, 1, ""),
        "d": (0, 0, "WaitingForRestatement"),
    }
    assert (again.succeeded, again.rows_erased) == (True, 0)
    found = people_by_row(story)
    assert found.pop(GONE[1]) == (None, ["nobody", "nobody"], ticket(GONE[1]))
    assert found == expected(of=[v for v in EVERYBODY if v not in (GONE[1], OTHER[1])])
    (row_,) = [r for r in lethe.scan(story.full_name).to_arrow().to_pylist() if r["v"] == GONE[1]]
    assert row_["customer"]["country"] == hashed(("DE", "FR")[GONE[2] % 2])


# --- what is written ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", some([2, 3], 3))
def test_files_with_redacted_rows_are_sorted_and_have_bounds_of_the_new_values(make: Make, version: int) -> None:
    """Also by a redacted column."""
    story = make(version, (), **{"write.metadata.metrics.default": "full"})
    story.sql("ALTER TABLE {t} WRITE ORDERED BY batch_id, customer.email")
    before = set(story.files())

    story.restate(a_redact_of(story, "A", "B", "D", columns={"customer.email": HASH, "ticket.id": "x"}))

    new = [f.file for f in story.table().scan().plan_files() if f.file.file_path not in before]
    assert new
    for file in new:
        rows = pq.read_table(local(file.file_path), partitioning=None).to_pylist()
        keys = [(r["batch_id"], (r["customer"] or {}).get("email")) for r in rows]
        assert keys == sorted(keys, key=lambda k: (k[0], k[1] or "")), "nulls are first"
        values = [email for _, email in keys if email is not None]
        assert values
        assert _bounds(file, story.field_id("customer.email")) == (min(values), max(values))
        assert _bounds(file, story.field_id("ticket.id")) == ("x", "x")


def _bounds(file: DataFile, field_id: int) -> tuple[str, str]:
    return file.lower_bounds[field_id].decode(), file.upper_bounds[field_id].decode()


TYPED = (
    "v bigint, day int, price decimal(10, 2), born date, at timestamp, local timestamp_ntz, ok boolean, weight double, "
    "photo binary, batch_id string"
)


@pytest.mark.parametrize("version", some([2, 3], 2))
def test_a_constant_is_written_in_the_type_of_its_column(spark: SparkSession, lake: Lake, version: int) -> None:
    """And a hash of bytes is the text of the hash of its bytes."""
    story = Trips.begin(spark, lake, (), format_version=version, columns=TYPED)
    story.buffer.put("first", pa.Table.from_pylist(some_rows("first", 1), ROWS))
    story.consolidate("first")
    story.sql(
        "INSERT INTO {t} SELECT 1, 1, 1.5, DATE'2000-01-01', TIMESTAMP'2000-01-01 00:00:00Z', "
        "TIMESTAMP_NTZ'2000-01-01 00:00:00', true, 1.5, X'00FF', 'A'"
    )
    columns = {
        "price": "0.10",
        "born": "1900-01-02",
        "at": "2026-03-01T12:00:00+02:00",
        "local": "2026-03-01 12:00:00.5",
        "ok": "false",
        "weight": "-1e3",
        "photo": HASH,
        "v": "-7",
    }

    result = story.restate(a_redact_of(story, "A", columns=columns))

    assert (result.succeeded, result.rows_redacted) == (True, 1), result.message
    (row_,) = [r for r in lethe.scan(story.full_name).to_arrow().to_pylist() if r["batch_id"] == "A"]
    assert {name: row_[name] for name in columns} == {
        "price": Decimal("0.10"),
        "born": date(1900, 1, 2),
        "at": datetime(2026, 3, 1, 10, tzinfo=UTC),
        "local": datetime(2026, 3, 1, 12, 0, 0, 500_000),  # noqa: DTZ001
        "ok": False,
        "weight": -1000.0,
        "photo": hmac.new(KEY, b"\x00\xff", hashlib.sha256).hexdigest().encode(),
        "v": -7,
    }


def test_no_value_and_no_key_is_in_what_spark_remembers_or_in_metadata(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    story = make(2)
    redact, before = a_redact(story, ticket(GONE[1])), last_query(story.spark)

    result = story.run(story.restatement(redact))

    told = "\n".join((plans_of(story.spark, before), redact.model_dump_json(), result.to_json(), caplog.text))
    ledger = json.dumps([dict(e.result) for e in story.ledger().requests.values()])
    assert [secret for secret in (ticket(GONE[1]), KEY.decode(), KEY.hex()) if secret in told or secret in ledger] == []


# --- what is refused ---------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Mapping[str, RedactionMethod | str], str, str]] = {
    "partition": ({"day": "1"}, "ColumnNotRedactable", "a column by which the table is partitioned"),
    "batch": ({"batch_id": "x"}, "ColumnNotRedactable", "the batch column"),
    "type": ({"v": "many"}, "InvalidSpec", "expected long"),
    "hash": ({"v": HASH}, "ColumnNotRedactable", "expected string or binary"),
    "nobody": ({"customer.emial": NULL}, "ColumnNotFound", "the nearest names are customer.email"),
    "twice": ({"customer": NULL, "customer.email": HASH}, "InvalidSpec", "a part of the same"),
}


def test_what_cannot_be_redacted_is_refused_by_runs_and_dry_runs_and_the_others_go_on(make: Make) -> None:
    story = make(3)
    refused = [a_redact(story, ticket(GONE[1]), name=name, columns=c) for name, (c, _, _) in REFUSED.items()]

    planned = results_by_name(story.run(rehearsal(story.restatement(*refused, a_redact(story, ticket(GONE[1]))))))
    head = story.head().snapshot_id
    done = results_by_name(story.restate_all(*refused, a_request("revert", batch_ids=["A"])))

    assert (planned["redact"].succeeded, planned["redact"].plan and planned["redact"].plan.files) == (True, 2)
    assert head == story.snapshots()[1].snapshot_id
    for name, (_, reason, text) in REFUSED.items():
        assert (done[name].succeeded, done[name].again, done[name].reason) == (False, False, reason)
        assert text in done[name].message
        assert (planned[name].reason, planned[name].message) == (reason, done[name].message)
    assert done["revert"].succeeded
    assert story.obligations() == []


def test_a_key_that_is_missing_is_waited_for_and_a_short_one_is_refused(make: Make) -> None:
    story = make(3)
    redact = a_redact(story, ticket(GONE[1]))
    assert redact.redact is not None
    key = Path(redact.redact.hash_key_file)
    key.unlink()

    with pytest.raises(TransientError, match="found no Secret hash-2026 with the key key") as waits:
        story.restate(redact)
    key.write_bytes(b"short")
    short = story.restate(redact)
    key.write_bytes(KEY)

    assert waits.value.reason == "SecretNotFound"
    assert (short.succeeded, short.reason) == (False, "InvalidHashKey")
    assert story.restate(redact).rows_redacted == 1


# --- races -------------------------------------------------------------------------------------------------------------


class Race(NamedTuple):
    """What others do between the search and the commit, how many rows are redacted, and which rows are seen then.

    `before` is what happened to the table before.
    """

    act: Callable[[Trips], object]
    redacted: int
    rows: Counter[Row]
    before: Callable[[Trips], object] = lambda _: None


ALL = of_batches("A", "B", "D")
RACES = {
    "a compaction": Race(Trips.compact, 2, ALL),
    "a vacuum": Race(Trips.vacuum, 2, of_batches("B", "D"), lambda s: s.revert("A")),
    "a revert": Race(lambda s: s.revert("B"), 2, of_batches("A", "D")),
    "an undo": Race(Trips.undo, 2, ALL, lambda s: s.revert("B")),
    "an erase": Race(
        lambda s: s.restate(s.an_erase(ticket(GONE[1]), column="ticket.id", name="theirs")), 1, ALL - Counter([GONE])
    ),
    "another redact": Race(
        lambda s: s.restate(a_redact(s, ticket(GONE[1]), columns={"customer.country": NULL}, name="theirs")), 2, ALL
    ),
}


@races(
    RACES,
    ["after_search", "after_erase", "before_commit"],
    ("a compaction", 2, "before_commit"),
    ("an erase", 3, "before_commit"),
    ("a revert", 3, "after_search"),
    ("another redact", 3, "after_erase"),
    fixture="trips",
)
def test_a_redact_neither_loses_nor_brings_back_a_row_that_others_change_meanwhile(
    trips: Trips, case: Race, step: str
) -> None:
    case.before(trips)
    redact = a_redact(trips, ticket(GONE[1]), ticket(OTHER[1]))

    result = trips.restate(redact, **{step: lambda: case.act(trips)})

    assert (result.succeeded, result.rows_redacted) == (True, case.redacted), result.message
    trips.check_reads(case.rows)
    assert people_by_row(trips) == expected(GONE[1], OTHER[1], of=[v for _, v, _ in case.rows])


def test_a_vacuum_that_a_redact_overtakes_does_not_bring_the_old_values_back(make: Make) -> None:
    """The files that it has written hold them."""
    story = make(3)
    story.revert("A")

    story.vacuum(before_commit=lambda: story.restate(a_redact(story, ticket(GONE[1]))))

    assert people_by_row(story) == expected(GONE[1], of=[v for _, v, _ in of_batches("B", "D")])
