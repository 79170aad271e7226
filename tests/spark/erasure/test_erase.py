"""Erase: the rows that were named are gone for every reader and for good, whoever is at work beside it, and nothing tells which.

An Erase meets others between its search and its commit: what it was to take is gone afterwards, wherever it lies by then, and
nothing else is; and nobody who wrote files meanwhile brings it back.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import TransientError
from lethe.contract.checks import CheckSpec
from lethe.contract.result import RunResult
from lethe.contract.run import RunSpec, SearchLimits
from lethe.contract.settings import UnknownBatches
from pyspark.sql import SparkSession

from tests.spark.parameters import VERSION_2, VERSION_3, moments, races
from tests.spark.support.built_once import built_once
from tests.spark.support.changes import CHANGES, Changing
from tests.spark.support.erases import Names, but, files_with, last_query, name_of, plans_of, row, table_folder
from tests.spark.support.story import ALL_GONE, Row, avro, local, of_batches, results_by_name, some_rows
from tests.support.builders import a_request, ago
from tests.support.lake import Lake

Make = Callable[..., Names]


@pytest.fixture
def make(spark: SparkSession, lake: Lake) -> Make:
    """Batches A, B and D are in a table of this format version."""

    @built_once
    def begin(format_version: int, partition_by: tuple[str, ...] = ("day",)) -> Names:
        return Names.begin(spark, lake, partition_by, format_version=format_version).filled()

    return begin


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def story(request: pytest.FixtureRequest, make: Make) -> Names:
    return make(request.param)


@VERSION_3
def test_an_erase_of_batches_hides_them_writes_no_data_and_is_not_undone(story: Names) -> None:
    files = story.files()

    result = story.restate(
        a_request("erase", "Erase", batch_ids=("A", "late"), evict_by_seconds=60, unknown_batches=UnknownBatches.ALLOW)
    )

    assert (result.succeeded, result.rows_deleted, result.tombstones_added) == (True, 4, 2)
    assert (story.files(), story.states()["A"], story.states()["late"]) == (files, "erased", "erased")
    assert story.obligations() == [("ns/erase/0", story.field_id("batch_id"))]
    story.put("late")
    assert story.consolidate("late").batches_withheld == 1
    undone = story.undo("erase")
    assert (undone.succeeded, undone.reason) == (False, "NotUndoable")
    assert "An Erase cannot be undone" in undone.message
    story.vacuum()
    assert avro(story.keys()["tombstone.file"]) == []
    story.check_reads(of_batches("B", "D"))


@VERSION_2
def test_the_rows_that_hold_a_value_go_in_one_snapshot_and_no_other_row(story: Names) -> None:
    """One of a batch of each partition, one of a batch taken back, and two values that nobody has."""
    story.revert("A", name="before")
    gone = row("B", 1), row("D", 2), row("A", 0)
    snapshots, before = len(story.snapshots()), story.physical()

    result = story.restate(story.an_erase(*(name_of(v) for _, v, _ in gone), "nobody", name_of(0), evict_by_seconds=60))

    assert (result.succeeded, result.rows_erased, result.group_size) == (True, 3, 1)
    assert result.snapshot_id == story.head().snapshot_id
    assert len(story.snapshots()) == snapshots + 1
    assert story.physical() == before - Counter(gone)
    assert story.obligations() == [("ns/erase/0", story.field_id("name"))]
    assert story.ledger().requests["ns/erase/0"].result["rowsErased"] == 3
    assert story.states() == {"A": "reverted", "B": "promoted", "D": "promoted"}
    story.check_reads(but(*gone, batches=("B", "D")))


@VERSION_2
def test_an_erase_after_a_replay_of_its_group_waits_for_the_rows_that_it_brings(story: Names) -> None:
    v = some_rows("A2", 1)[0]["v"]
    replay = story.a_replay("A", by="A2", creation_time=ago(hours=1))
    erase = story.an_erase(name_of(v))

    first, second = story.restate_all(erase, replay), story.restate_all(erase, replay)

    waiting = results_by_name(first)["erase"]
    assert (waiting.succeeded, waiting.again, waiting.reason) == (False, True, "WaitingForRestatement")
    assert results_by_name(second)["erase"].rows_erased == 1
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3) - Counter({row("A2", 0): 1}))


def test_a_vacuum_rewrites_files_with_rows_that_a_deletion_vector_hides(make: Make) -> None:
    """And nothing of them is left in the storage when their snapshots are gone."""
    story = make(3)
    v = row("B", 1)
    story.erase(v)
    assert any(v[1] in values_in(p) for p in story.data_folder())

    result = story.vacuum(ALL_GONE)

    assert (result.files_rewritten, result.rows_purged) == (1, 1)
    assert not any(v[1] in values_in(p) for p in story.data_folder())
    assert story.vacuum(key="2").outcome == "NothingToDo"
    story.check_reads(but(v))


def values_in(path: str) -> list[int]:
    found: list[int] = pq.read_table(local(path), columns=["v"], partitioning=None)["v"].to_pylist()
    return found


# --- what is wrong with it ------------------------------------------------------------------------------------------


@VERSION_2
def test_a_repeated_request_with_other_values_is_refused_and_with_the_same_values_gets_its_result(
    story: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Restatement was deleted and created again, with or without a change of its Secret in between."""
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef")
    monkeypatch.setenv("LETHE_VALUES_DIGEST_KEY_FILE", str(key))
    erase = story.an_erase(name_of(row("B", 1)[1]))
    assert erase.rows is not None
    assert story.restate_all(erase).requests[0].rows_erased == 1
    head, recreated = story.head().snapshot_id, erase.model_copy(update={"creation_time": ago(days=1)})

    same = story.restate(recreated)
    Path(erase.conditions[0].values_file).write_text(f"{name_of(row('B', 2)[1])}\n")
    other = story.restate(recreated)
    key.write_bytes(b"another key, which nobody had before")
    unknown = story.restate(recreated)

    assert (same.succeeded, same.rows_erased, other.reason, unknown.reason) == (
        True,
        1,
        "ValuesChanged",
        "ValuesNotComparable",
    )
    assert story.head().snapshot_id == head
    story.check_reads(but(row("B", 1)))
    assert files_with(table_folder(story) / "_tombstones", name_of(row("B", 1)[1])) == []


@VERSION_3
def test_values_that_are_not_there_are_waited_for_and_the_others_go_on(story: Names) -> None:
    erase, other = (
        story.an_erase(name_of(row("B", 1)[1]), name="waits"),
        story.an_erase(name_of(row("B", 2)[1]), name="goes"),
    )
    assert erase.rows is not None
    file = Path(erase.conditions[0].values_file)
    content = file.read_text()
    file.unlink()

    result = story.restate_all(erase, other, a_request("revert", batch_ids=["A"]))

    assert {n: (r.succeeded, r.again, r.reason) for n, r in results_by_name(result).items()} == {
        "waits": (False, True, "SecretNotFound"),
        "goes": (True, False, ""),
        "revert": (True, False, ""),
    }
    expected_text = (
        r"SecretNotFound: Restatement ns/waits: spec\.rows\.valuesFrom: found no Secret erase-people with the key "
    )
    with pytest.raises(TransientError, match=expected_text):
        story.restate_all(erase)
    file.write_text(content)
    assert story.restate_all(erase).requests[0].rows_erased == 1
    story.check_reads(but(row("B", 1), row("B", 2), batches=("B", "D")))


BAD = {"ColumnNotFound": ("nobody", "x"), "InvalidSpec": ("batch_id", "A"), "InvalidValues": ("day", "a secret")}


def test_erases_that_cannot_be_understood_are_refused_and_the_others_go_on(make: Make) -> None:
    story = make(2)
    bad = [story.an_erase(value, name=reason, column=column) for reason, (column, value) in BAD.items()]

    result = story.restate_all(*bad, a_request("revert", batch_ids=["A"]))

    refused = [r for r in result.requests if not r.succeeded]
    assert [(r.name, r.reason, r.again) for r in refused] == [(f"ns/{reason}", reason, False) for reason in BAD]
    assert "a secret" not in result.to_json()
    assert story.obligations() == []
    story.check_reads(of_batches("B", "D"))


# --- nobody is told who was erased ----------------------------------------------------------------------------------


def two_erases(story: Names, secret: str) -> RunSpec:
    """One that takes a row and one that is refused, of the same value."""
    return story.restatement(
        story.an_erase(secret, "somebody else", name="good"), story.an_erase(secret, name="bad", column="day")
    )


def check_nobody_knows(story: Names, secret: str, **texts: str) -> None:
    ledger = json.dumps([dict(e.result) for e in story.ledger().requests.values()])
    places = {**texts, "ledger": ledger}
    assert [where for where, text in places.items() if secret in text or "somebody else" in text] == []
    assert files_with(table_folder(story), secret, "somebody else") == []


@VERSION_2
@pytest.mark.parametrize("limits", [SearchLimits(), SearchLimits(max_files_per_commit=0)], ids=["here", "by workers"])
def test_no_value_is_in_what_spark_remembers_of_its_queries(
    story: Names, limits: SearchLimits, caplog: pytest.LogCaptureFixture
) -> None:
    """Its pages and event logs show that. Nor is one in the run's input, its result and its log."""
    caplog.set_level(logging.INFO)
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default' = 'avro')")
    story.append_by_spark(row("B", 1), row("x", 0))
    secret = name_of(row("B", 1)[1])

    spec, before = two_erases(story, secret), last_query(story.spark)
    assert spec.restatement is not None
    group = spec.restatement.model_copy(update={"search_limits": limits})
    spec = spec.model_copy(update={"restatement": group})

    result = story.run(spec)

    assert results_by_name(result)["good"].rows_erased == 2
    told = {"run": spec.to_json(), "result": result.to_json(), "log": caplog.text}
    check_nobody_knows(story, secret, plans=plans_of(story.spark, before), **told)


def test_keys_are_in_no_ledger_no_metadata_and_no_name(spark: SparkSession, lake: Lake) -> None:
    """But for bounds of the data files, which hold the least and the greatest value of any column."""
    story = Changing.begin(spark, lake, format_version=3).filled()
    rows = pa.Table.from_pylist(
        [{"v": v, "day": 1, "name": name_of(v), "op": op} for v, op in ((row("B", 1)[1], "U"), (row("B", 2)[1], "D"))],
        CHANGES,
    )

    result = story.restate(
        a_request("x", "Replay", batch_ids=(), replacement=story.put_changes("C1", rows, keys=("name",)))
    )

    assert (result.rows_erased, result.rows_added) == (2, 1)
    assert name_of(row("B", 2)[1]) not in result.to_json()
    assert files_with(table_folder(story) / "_tombstones", *map(name_of, (row("B", 1)[1], row("B", 2)[1]))) == []


# --- races ----------------------------------------------------------------------------------------------------------

STEPS = ["after_search", "after_erase", "before_commit"]
GONE = row("B", 1), row("D", 2)
NEW = ("x", GONE[0][1], 1), ("x", 1, 1)


class Race(NamedTuple):
    """What others do between the search and the commit, how many rows the Erase counts, and what is seen then.

    `gone` is what it is to erase, `before` what happened to the table before.
    """

    act: Callable[[Names], object]
    erased: int
    rows: Counter[Row]
    gone: tuple[Row, ...] = GONE
    before: Callable[[Names], object] = lambda _: None


FIRST = {
    "a compaction": Race(Names.compact, 2, but(*GONE)),
    "appends": Race(lambda s: s.append_by_spark(*NEW), 3, but(*GONE) + Counter([NEW[1]])),
    "a vacuum": Race(Names.vacuum, 2, but(*GONE, batches=("B", "D")), (*GONE, row("A", 1)), lambda s: s.revert("A")),
    "an undo": Race(Names.undo, 2, but(*GONE), before=lambda s: s.revert("B")),
    "a consolidation": Race(
        lambda s: s.filled("E"), 3, but(*GONE, row("E", 1), batches=("A", "B", "D", "E")), (*GONE, row("E", 1))
    ),
    "a replay": Race(
        lambda s: s.replay("A", by="A2"),
        3,
        of_batches("B", "D") + of_batches("A2", rows=3) - Counter([*GONE, row("A2", 1)]),
        (*GONE, row("A2", 1)),
    ),
    "another erase": Race(lambda s: s.erase(GONE[0], row("B", 3), name="theirs"), 1, but(*GONE, row("B", 3))),
    "a delete of another engine": Race(
        lambda s: s.sql(f"DELETE FROM {{t}} WHERE v = {row('B', 3)[1]}"),
        2,
        but(*GONE, row("B", 3)),
        before=lambda s: s.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"),
    ),
}


@races(
    FIRST,
    STEPS,
    ("appends", 3, "before_commit"),
    ("an undo", 2, "before_commit"),
    ("a consolidation", 3, "after_search"),
    ("another erase", 3, "after_search"),
)
def test_what_an_erase_takes_is_gone_wherever_others_moved_or_brought_it_meanwhile_and_nothing_else(
    story: Names, case: Race, step: str
) -> None:
    """Whoever asks for an Erase may not know of appends. A file has one vector at the most, which holds the rows of both."""
    case.before(story)

    result = story.erase(*case.gone, **{step: lambda: case.act(story)})

    assert (result.succeeded, result.rows_erased) == (True, case.erased)
    if not story.ledger().tombstones:
        assert story.physical() == case.rows
    story.check_reads(case.rows)


class Overtaken(NamedTuple):
    """A run that an Erase overtakes, what happened before, and what is seen in the end."""

    before: Callable[[Names], object]
    run: Callable[..., object]
    rows: Counter[Row]


OVERTAKEN = {
    "a vacuum": Overtaken(lambda s: s.revert("A"), Names.vacuum, but(*GONE, batches=("B", "D"))),
    "a vacuum of files with deletes": Overtaken(
        lambda s: (s.erase(row("B", 0), name="before"), s.revert("A")),
        Names.vacuum,
        but(row("B", 0), *GONE, batches=("B", "D")),
    ),
    "an undo": Overtaken(lambda s: s.revert("B"), Names.undo, but(*GONE)),
    "a consolidation": Overtaken(
        lambda s: s.put("E"),
        lambda s, **at: s.consolidate("E", **at),
        but(*GONE, batches=("A", "B", "D", "E")),
    ),
}


@races(OVERTAKEN, ["before_commit"], ("a vacuum", 3, "before_commit"))
def test_a_run_that_an_erase_overtakes_does_not_bring_the_rows_back(story: Names, case: Overtaken, step: str) -> None:
    """The files that it has written may hold them."""
    case.before(story)

    case.run(story, **{step: lambda: story.erase(*GONE)})

    assert story.physical() == case.rows
    story.check_reads(case.rows)


@moments(["at_once", "after_search"], (2, "after_search"))
def test_an_erase_waits_for_a_listing_that_is_younger_than_the_last_undo(story: Names, step: str) -> None:
    """A batch lies in the buffer and was reverted before it came: the listing did not count it among those that the Erase waits
    for. The Undo lets it in, after the listing and before the Erase, or during its search."""
    somebody = row("late", 0)
    story.revert("late", unknown="Allow")
    story.put("late")
    assert story.consolidate("late").batches_withheld == 1
    listed = story.head().snapshot_id
    if step == "at_once":
        story.undo()
    at = {} if step == "at_once" else {step: story.undo}

    spec = story.restatement(story.an_erase(name_of(somebody[1])))
    assert spec.restatement is not None
    restatement = spec.restatement.model_copy(update={"listed_snapshot_id": listed})
    with pytest.raises(
        TransientError, match="an Undo may have allowed more batches to be promoted since the buffer was listed"
    ) as failed:
        story.run(spec.model_copy(update={"restatement": restatement}), **at)
    assert failed.value.reason == "BufferBeingListed"
    assert story.consolidate("late").batches_promoted == 1
    again = restatement.model_copy(update={"listed_snapshot_id": story.head().snapshot_id})
    (result,) = story.run(spec.model_copy(update={"restatement": again, "attempt": 2})).requests

    assert (result.succeeded, result.rows_erased) == (True, 1)
    story.check_reads(but(somebody, batches=("A", "B", "D", "late")))


def held(story: Names, batch_id: str, attempt: int = 1) -> RunResult:
    """Consolidate a batch with a check that holds every row."""
    spec = story.consolidation(batch_id)
    assert spec.consolidation is not None
    check = CheckSpec.model_validate({"name": "none", "condition": "v < 0", "onFailure": "Hold"})
    checked = spec.consolidation.model_copy(update={"checks": (check,)})
    return story.run(spec.model_copy(update={"consolidation": checked, "run_id": f"{spec.run_id[:-1]}{attempt}"}))


@VERSION_3
def test_an_erase_waits_for_an_approved_batch_and_one_that_it_did_not_search_is_never_approved(story: Names) -> None:
    """No listing counts held batches among those that an Erase waits for."""
    somebody = row("late", 0)
    story.put("late", "later")
    assert held(story, "late").held_count == 1
    assert held(story, "later").held_count == 1
    assert story.restate(a_request("approve", "Approve", batch_ids=("late",))).succeeded
    erase = story.an_erase(name_of(somebody[1]))

    with pytest.raises(TransientError, match="batch 'late' is approved and not promoted yet"):
        story.restate(erase)
    assert held(story, "late", attempt=2).batches_promoted == 1
    result = story.restate(erase)
    refused = story.restate(a_request("too-late", "Approve", batch_ids=("later",)))

    assert (result.succeeded, result.rows_erased) == (True, 1)
    assert (refused.succeeded, refused.reason) == (False, "ErasedSince")
    story.check_reads(but(somebody, batches=("A", "B", "D", "late")))
