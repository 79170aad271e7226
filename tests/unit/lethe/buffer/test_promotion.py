"""What becomes of a batch: it is promoted once, leaves the buffer after its retention, or is refused and moved."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from lethe.base.errors import Verdict
from lethe.base.objects import BufferedObject, ListedObject
from lethe.buffer.layout import BufferedBatch
from lethe.buffer.promotion import (
    BatchSweep,
    JudgedBatch,
    Promotion,
    Publish,
    Removal,
    StageNote,
    WriteAgain,
    WrittenBatch,
    WrittenFiles,
    is_judged,
    is_left,
    is_mixed,
    plan_promotion,
    plan_publication,
    plan_removal,
    reason_uri,
    refused_folder,
    sweep_of,
)
from lethe.ledger.ledger import BatchEntry, BatchState, Delta, Ledger

from tests.support.builders import NOW, RUN, a_batch, a_ledger, ago, an_object, listed

BAD = Verdict.parse("bad")
EVERY_STATE = a_ledger(
    batches=[
        a_batch("promoted"),
        a_batch("reverted", BatchState.REVERTED),
        a_batch("replaced", BatchState.REPLACED),
        a_batch("erased", BatchState.ERASED),
        a_batch("refused", BatchState.REFUSED),
        a_batch("held", BatchState.HELD),
    ]
)
NOT_PROMOTED = (BatchState.REFUSED, BatchState.HELD)


def written(*ids: str, in_table: bool = False) -> WrittenFiles:
    return WrittenFiles({i: WrittenBatch(i, 3, 30, (an_object(i),)) for i in ids}, in_table=in_table)


def published(
    *ids: str, ledger: Ledger | None = None, refused: Mapping[str, JudgedBatch] | None = None, in_table: bool = False
) -> Delta:
    """What is recorded when the files of these batches become part of the table."""
    plan = plan_publication(ledger or a_ledger(), written(*ids, in_table=in_table), refused or {}, RUN, NOW)
    assert isinstance(plan, Publish)
    return plan.delta


def test_a_batch_deleted_before_it_arrived_is_withheld_and_reported() -> None:
    """A is replaced while it still waits in the buffer; promoting it afterwards would double its rows."""
    wanted = ["new", "promoted", "reverted", "replaced", "erased", "refused", "held", "new"]

    planned = plan_promotion(EVERY_STATE, wanted)

    assert planned == Promotion(("new", "refused", "held"), ("promoted",), ("reverted", "replaced", "erased"))


def test_a_publication_records_each_object_so_that_retention_deletes_nothing_else() -> None:
    refused = {"X": JudgedBatch(Verdict("CorruptFile", "x.parquet"), (an_object("X"),))}

    entries = {b.id: b for b in published("A", "B", refused=refused).set_batches}

    assert {i: str(b.state) for i, b in entries.items()} == {"A": "promoted", "B": "promoted", "X": "refused"}
    assert (entries["A"].objects, entries["A"].rows, entries["A"].run) == ((an_object("A"),), 3, RUN)
    assert (entries["X"].objects, entries["X"].refusal) == ((an_object("X"),), Verdict("CorruptFile", "x.parquet"))


@pytest.mark.parametrize(
    ("known", "again"),
    [
        *([[a_batch("A", state)], ("B",)] for state in BatchState if state not in NOT_PROMOTED),
        ([a_batch("A"), a_batch("B")], ()),
    ],
)
def test_files_shared_with_a_batch_that_is_settled_meanwhile_are_written_again(
    known: list[BatchEntry], again: tuple[str, ...]
) -> None:
    """Run 1 stages {A, B} in one file and dies, another writer promotes A. Publishing the file doubles A, dropping it
    loses B, and hiding A would hide the good copy too."""
    assert WriteAgain(again) == plan_publication(a_ledger(batches=known), written("A", "B"), {}, RUN, NOW)


def test_a_refusal_does_not_overwrite_what_became_of_the_batch_meanwhile() -> None:
    ledger = a_ledger(batches=[a_batch("X", BatchState.REVERTED)])

    delta = published("A", ledger=ledger, refused={"X": JudgedBatch(BAD, ())})

    assert [b.id for b in delta.set_batches] == ["A"]


def test_a_refused_batch_may_be_promoted_once_its_producer_has_mended_it() -> None:
    (entry,) = published("X", ledger=a_ledger(batches=[a_batch("X", BatchState.REFUSED, refusal="bad")])).set_batches

    assert (entry.state, entry.refusal) == (BatchState.PROMOTED, None)


def test_a_held_batch_is_recorded_with_its_objects_and_an_approval_stays_with_the_promoted_one() -> None:
    judged = JudgedBatch(BAD, (an_object("X"),), is_held=True)
    held = a_batch("X", BatchState.HELD, refusal="bad", objects=(an_object("X"),))
    approved = replace(held, restatement="ns/approve/1")

    (first,) = published(refused={"X": judged}).set_batches
    again = published(refused={"X": judged}, ledger=a_ledger(batches=[held]))
    refused = published(refused={"X": replace(judged, is_held=False)}, ledger=a_ledger(batches=[held]))
    (promoted,) = published("X", ledger=a_ledger(batches=[approved])).set_batches
    (unapproved,) = published("X", ledger=a_ledger(batches=[held])).set_batches

    assert (first.state, first.refusal, first.objects) == (BatchState.HELD, BAD, (an_object("X"),))
    assert again.is_empty
    assert [b.state for b in refused.set_batches] == [BatchState.REFUSED]
    assert (promoted.state, promoted.restatement) == (BatchState.PROMOTED, "ns/approve/1")
    assert unapproved.restatement is None


def test_a_repeated_refusal_changes_nothing() -> None:
    """A run that died after its commit would otherwise commit the same refusal each time it is repeated."""
    ledger = a_ledger(batches=[a_batch("X", BatchState.REFUSED, refusal="bad", objects=(an_object("X"),))])
    same, changed = (an_object("X"),), (an_object("X", etag="f"),)

    assert published().is_empty
    assert published(ledger=ledger, refused={"X": JudgedBatch(BAD, same)}).is_empty
    assert not published(ledger=ledger, refused={"X": JudgedBatch(BAD, changed)}).is_empty


def test_files_that_somebody_else_published_are_recorded_and_not_written_again() -> None:
    """A cherry-pick of the staged snapshot by another tool puts the rows in the table, and no record into the ledger."""
    delta = published("A", "B", ledger=a_ledger(batches=[a_batch("B", BatchState.REVERTED)]), in_table=True)

    assert [(b.id, str(b.state)) for b in delta.set_batches] == [("A", "promoted")]


PART, MARKER = an_object("buffer/batch_id=A/p.parquet"), an_object("buffer/batch_id=A/_SUCCESS", 0, "m")


def buffered(*objects: BufferedObject) -> BufferedBatch:
    return BufferedBatch("A", "buffer/batch_id=A", objects, True, 10, ago(days=9))


def sweep(*objects: BufferedObject, seconds: int = 3600, **changes: Any) -> BatchSweep:
    """What goes and what is reported of a folder whose batch was promoted two hours ago with one object."""
    entry = {"state": BatchState.PROMOTED, "time": ago(hours=2), "objects": (PART,), **changes}
    return sweep_of(buffered(*objects), a_batch("A", **entry), seconds, NOW)


LATE = an_object("buffer/batch_id=A/late.parquet")
LONGER, OTHER_TAG = replace(PART, size=PART.size + 1), replace(PART, etag="another")
ONCE_PROMOTED = [s for s in BatchState if s not in NOT_PROMOTED]
SWEEPS: dict[str, tuple[Sequence[BufferedObject], dict[str, Any], BatchSweep]] = {
    "a promoted folder goes": ((PART, MARKER), {}, BatchSweep((PART, MARKER))),
    "it goes when its retention ends": ((PART, MARKER), {"seconds": 7200}, BatchSweep((PART, MARKER))),
    "it does not go before": ((PART, MARKER), {"seconds": 7201}, BatchSweep()),
    "what was added stays": ((PART, LATE, MARKER), {}, BatchSweep((PART,), (LATE,))),
    "what was added is reported at once": ((PART, LATE, MARKER), {"seconds": 9999}, BatchSweep((), (LATE,))),
    "what is longer now stays": ((LONGER, MARKER), {}, BatchSweep((), (LONGER,))),
    "what was written over stays": ((OTHER_TAG, MARKER), {}, BatchSweep((), (OTHER_TAG,))),
    "the marker that a crash left goes": ((MARKER,), {}, BatchSweep((MARKER,))),
    "the part that a crash left goes": ((PART,), {}, BatchSweep((PART,))),
    "a refused batch stays": ((PART, MARKER), {"state": BatchState.REFUSED}, BatchSweep()),
    "a held batch stays": ((PART, MARKER), {"state": BatchState.HELD}, BatchSweep()),
    **{
        f"a batch that is {state} goes": ((PART, MARKER), {"state": state}, BatchSweep((PART, MARKER)))
        for state in ONCE_PROMOTED
    },
    **{
        f"a registered batch that is {state} stays: its objects are the table's": (
            (PART, LATE, MARKER),
            {"state": state, "registered": True, "seconds": 0},
            BatchSweep((), (LATE,)),
        )
        for state in ONCE_PROMOTED
    },
}


@pytest.mark.parametrize(("objects", "changes", "expected"), SWEEPS.values(), ids=SWEEPS)
def test_retention_deletes_what_was_promoted_as_it_was_and_nothing_else(
    objects: Sequence[BufferedObject], changes: dict[str, Any], expected: BatchSweep
) -> None:
    """The rows of other objects were never promoted: deleting them would lose the only copy."""
    assert sweep(*objects, **changes) == expected


def test_a_batch_that_was_not_promoted_is_never_deleted() -> None:
    withheld = a_batch("A", BatchState.REVERTED, time=ago(days=99))
    assert sweep_of(buffered(PART, MARKER), withheld, 0, NOW) == BatchSweep()


BUFFER = "s3://lake/buffer"
FOLDER = f"{BUFFER}/batch_id=a%20b"
ONE, TWO = listed(f"{FOLDER}/day=1/p 1", 10, "e1", ago(hours=1)), listed(f"{FOLDER}/p2", 20, "e2", ago(hours=1))
SUCCESS = listed(f"{FOLDER}/_SUCCESS", 0, "m", ago(hours=1))
HINT = listed(f"{FOLDER}/_temporary/0/p", 7, "t", ago(hours=1))


def plain(*objects: ListedObject) -> tuple[BufferedObject, ...]:
    return tuple(BufferedObject(o.key, o.size, o.etag) for o in objects)


def refused(**changes: Any) -> BatchEntry:
    wanted: dict[str, Any] = {"refusal": "SchemaMismatch: p2: column v: text", "objects": plain(ONE, TWO)}
    return a_batch("a b", BatchState.REFUSED, **{"rows": None, "bytes": None, **wanted, **changes})


def removal_of(*there: ListedObject, entry: BatchEntry | None = None) -> Removal:
    removal = plan_removal(BUFFER, entry or refused(), there)
    assert removal is not None
    return removal


def test_a_refused_batch_goes_to_a_folder_of_its_own_with_its_reason_marker_first() -> None:
    removal = removal_of(ONE, SUCCESS, TWO, HINT)

    target = refused_folder(BUFFER, refused())
    assert target.startswith(f"{BUFFER}/_refused/batch_id=a%20b/")
    assert dict(removal.copies) == {plain(ONE)[0]: f"{target}/day=1/p 1", plain(TWO)[0]: f"{target}/p2"}
    assert removal.marker == plain(SUCCESS)[0]
    assert set(removal.objects) == set(plain(ONE, TWO))
    assert removal.reason_uri == reason_uri(BUFFER, refused()) == f"{target}/_REFUSED.json"
    assert plan_removal(f"{BUFFER}/", refused(), [ONE, SUCCESS, TWO, HINT]) == removal


def test_the_reason_file_names_the_batch_the_reason_and_the_run() -> None:
    assert json.loads(removal_of(ONE, TWO).reason) == {
        "batch": "a b",
        "reason": "SchemaMismatch",
        "message": "p2: column v: text",
        "run": refused().run,
        "refusedTime": "2026-03-01T12:00:00Z",
        "objects": [
            {"key": f"{FOLDER}/day=1/p 1", "size": 10, "etag": "e1"},
            {"key": f"{FOLDER}/p2", "size": 20, "etag": "e2"},
        ],
    }


def test_what_a_crash_has_left_goes_the_same_way() -> None:
    """The marker and some objects are gone; the rest is copied again and deleted."""
    whole, rest = removal_of(ONE, TWO, SUCCESS), removal_of(TWO)

    assert (rest.objects, rest.marker) == (plain(TWO), None)
    assert dict(rest.copies).items() <= dict(whole.copies).items()
    assert (rest.reason_uri, rest.reason) == (whole.reason_uri, whole.reason)


@pytest.mark.parametrize(
    ("entry", "there"),
    [
        (refused(), []),
        (refused(), [SUCCESS]),
        (refused(), [ONE, TWO, SUCCESS, listed(f"{FOLDER}/p3")]),
        (refused(), [ONE, listed(TWO.key, 20, "other"), SUCCESS]),
        (refused(), [ONE, listed(TWO.key, 21, "e2"), SUCCESS]),
        (refused(objects=()), [ONE, TWO, SUCCESS]),
        (a_batch("a b", BatchState.PROMOTED, objects=plain(ONE, TWO)), [ONE, TWO, SUCCESS]),
        (a_batch("a b", BatchState.REVERTED), [ONE, TWO, SUCCESS]),
    ],
    ids=["gone", "marker", "added", "written over", "longer", "unjudged", "promoted", "taken back"],
)
def test_a_folder_that_holds_anything_else_is_left_alone(entry: BatchEntry, there: list[ListedObject]) -> None:
    """Its producer is mending it, or it is no refused batch at all."""
    assert plan_removal(BUFFER, entry, there) is None


@pytest.mark.parametrize("again", [ONE, SUCCESS])
def test_what_was_written_after_the_refusal_is_not_taken_for_what_was_refused(again: ListedObject) -> None:
    """A store calls the same bytes the same, whoever put them and when: but they have not been looked at."""
    there = [listed(o.key, o.size, o.etag, NOW if o is again else ago(hours=2)) for o in (ONE, TWO, SUCCESS)]

    assert plan_removal(BUFFER, refused(time=ago(hours=1)), there, until=ago(hours=1)) is None
    assert plan_removal(BUFFER, refused(time=ago(hours=1)), there) is not None


def the_batch(*objects: ListedObject) -> BufferedBatch:
    return BufferedBatch("a b", FOLDER, plain(*objects), True, 30, min(o.modified for o in objects))


def test_a_batch_is_left_if_some_objects_are_older_than_the_refusal() -> None:
    later = listed(f"{FOLDER}/p3", modified=NOW)

    assert is_left(the_batch(ONE, TWO), refused())
    assert is_left(the_batch(TWO, later), refused())
    assert not is_left(the_batch(later), refused())
    assert not is_left(the_batch(ONE, TWO), None)
    assert not is_left(the_batch(ONE, TWO), a_batch("a b", objects=plain(ONE, TWO)))
    assert not is_left(the_batch(ONE, TWO), refused(time=ago(hours=3)))


def test_a_batch_is_mixed_if_it_has_refused_and_new_objects() -> None:
    """Written again as a whole it is not, though some of its files be the same to the byte."""
    new, again = listed(f"{FOLDER}/p3", modified=NOW), listed(ONE.key, ONE.size, ONE.etag, NOW)

    assert is_mixed(the_batch(ONE, new), refused())
    assert not is_mixed(the_batch(ONE, TWO), refused())
    assert not is_mixed(the_batch(again, new), refused(time=ago(hours=1)))


REFUSED_FILE = listed(f"{BUFFER}/a%20b.csv.gz", 10, "e1", ago(hours=1))


def test_a_refused_file_goes_to_a_folder_of_its_own_under_its_name() -> None:
    entry = refused(objects=plain(REFUSED_FILE))

    removal = removal_of(REFUSED_FILE, entry=entry)

    target = refused_folder(BUFFER, entry)
    assert target.startswith(f"{BUFFER}/_refused/a%20b.csv.gz/")
    assert dict(removal.copies) == {plain(REFUSED_FILE)[0]: f"{target}/a%20b.csv.gz"}
    assert (removal.marker, removal.reason_uri) == (None, f"{target}/_REFUSED.json")


@pytest.mark.parametrize(
    "there",
    [
        [],
        [listed(REFUSED_FILE.key, 10, "e2", ago(hours=1))],
        [listed(REFUSED_FILE.key, 10, "e1", NOW)],  # the same bytes, written since: they are to be looked at again
    ],
)
def test_a_file_that_was_deleted_or_written_again_is_left_alone(there: list[ListedObject]) -> None:
    assert plan_removal(BUFFER, refused(objects=plain(REFUSED_FILE)), there, until=ago(minutes=1)) is None


def test_a_batch_counts_as_judged_while_its_objects_may_be_moved_away() -> None:
    """Those that lie there since before, and the very same bytes though they were written again; nothing else."""
    later = refused(time=ago(hours=3))  # than which both were written

    assert is_judged(the_batch(TWO, listed(f"{FOLDER}/p3", modified=NOW)), refused())
    assert is_judged(the_batch(ONE, TWO), later)
    assert is_judged(the_batch(ONE), later)
    assert not is_judged(the_batch(ONE, listed(f"{FOLDER}/p3", modified=NOW)), later)
    assert not is_judged(the_batch(ONE, TWO), None)
    assert not is_judged(the_batch(ONE, TWO), a_batch("a b", objects=plain(ONE, TWO)))


def test_the_reference_of_a_delivery_stays_with_its_batch_whatever_becomes_of_it() -> None:
    references = {"A": "run-7", "X": "run-7"}
    files = replace(written("A", "B"), references=references)
    judged = {"X": JudgedBatch(BAD, (an_object("X"),), is_held=True)}

    plan = plan_publication(a_ledger(), files, judged, RUN, NOW)

    assert isinstance(plan, Publish)
    assert {b.id: b.reference for b in plan.delta.set_batches} == {"A": "run-7", "B": None, "X": "run-7"}


def test_a_note_of_staged_batches_is_read_as_it_was_written_and_recognized() -> None:
    objects = (
        BufferedObject("s3://lake/buffer/A/p.parquet", 3, "e", "05"),
        an_object("s3://lake/buffer/A/_SUCCESS", 0, "m"),
    )
    refused = {"F": JudgedBatch(BAD, objects), "H": JudgedBatch(BAD, (), is_held=True)}
    note = StageNote({"A": WrittenBatch("A", 2, 3, objects)}, refused, {"M": "is gone"}, {"A": "dag/1"})

    document = json.loads(note.to_json())

    assert StageNote.of(note.to_json()) == note
    assert StageNote.has_keys(document)
    assert not StageNote.has_keys({**document, "other": 1})


def test_a_note_of_an_earlier_build_has_no_references() -> None:
    document = {"batches": [], "refused": [{"id": "F", "reason": "Bad", "message": "x", "objects": []}], "missing": {}}

    note = StageNote.of(json.dumps(document).encode())

    assert StageNote.has_keys(document)
    assert (note.references, note.refused["F"].is_held) == ({}, False)
