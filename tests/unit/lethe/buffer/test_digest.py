"""A listing of any length is folded into what a decision needs, and no more of it is remembered."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.buffer import digest as module
from lethe.buffer.digest import BufferDigest, BufferState, Newest, digest, state_of, with_folders
from lethe.buffer.layout import BufferedBatch, Directories, NoBatch, folders_of
from lethe.ledger.ledger import BatchEntry, BatchState, Ledger

from tests.support.builders import NOW, a_batch, a_ledger, ago, an_object, listed

ROOT = "s3://lake/buffer"


def buffered(id: str = "A", *, age_seconds: float = 60, size: int = 10, complete: bool = True, etag: str = "e") -> Any:
    folder = f"{ROOT}/batch_id={id}"
    marker = (an_object(f"{folder}/_SUCCESS", 0, "m"),) if complete else ()
    objects = (*marker, an_object(f"{folder}/p.parquet", size, etag))
    return BufferedBatch(id, folder, objects, complete, size, NOW - timedelta(seconds=age_seconds))


def promoted(batch: BufferedBatch, **changes: Any) -> BatchEntry:
    return a_batch(batch.id, **{"objects": batch.data_objects, "time": ago(days=2), **changes})


def digested(*found: BufferedBatch | NoBatch, ledger: Ledger | None = None, **changes: Any) -> BufferDigest:
    known = (ledger or a_ledger()).batches
    wanted = {"names": 100, "retention_seconds": 3600, "now": NOW, **changes}
    return digest(found, lambda ids: {i: known[i] for i in ids if i in known}, **wanted)


def ids(found: BufferDigest) -> list[str]:
    return [b.id for b in found.oldest]


REFUSED = buffered("F")
HELD = buffered("H")
TAKEN_BACK = [BatchState.REVERTED, BatchState.REPLACED, BatchState.ERASED]


@pytest.mark.parametrize(
    ("batch", "entry", "expected"),
    [
        (buffered(), None, BufferState.WAITING),
        (buffered(complete=False), None, BufferState.INCOMPLETE),
        (replace(buffered(), objects=buffered().objects[:1]), None, BufferState.INCOMPLETE),  # a marker alone
        (buffered(), a_batch(), BufferState.PROMOTED),
        (buffered(complete=False), a_batch(), BufferState.PROMOTED),  # its marker went first
        *((buffered(), a_batch("A", s), BufferState.PROMOTED) for s in TAKEN_BACK),
        *((buffered(), a_batch("A", s, rows=None), BufferState.WITHHELD) for s in TAKEN_BACK),
        (buffered(complete=False), a_batch("A", BatchState.REVERTED, rows=None), BufferState.INCOMPLETE),
        (REFUSED, a_batch("F", BatchState.REFUSED, objects=REFUSED.data_objects), BufferState.REFUSED),
        (
            buffered("F", etag="new"),
            a_batch("F", BatchState.REFUSED, objects=REFUSED.data_objects),
            BufferState.WAITING,
        ),
        (REFUSED, a_batch("F", BatchState.REFUSED, objects=()), BufferState.REFUSED),
        (HELD, a_batch("H", BatchState.HELD, objects=HELD.data_objects), BufferState.HELD),
        (
            HELD,
            a_batch("H", BatchState.HELD, objects=HELD.data_objects, restatement="ns/approve/1"),
            BufferState.WAITING,
        ),
        (buffered("H", etag="new"), a_batch("H", BatchState.HELD, objects=HELD.data_objects), BufferState.WAITING),
        (buffered("H", complete=False), a_batch("H", BatchState.HELD), BufferState.INCOMPLETE),
        (buffered("F", complete=False), a_batch("F", BatchState.REFUSED), BufferState.INCOMPLETE),
    ],
)
def test_what_becomes_of_a_batch(batch: BufferedBatch, entry: BatchEntry | None, expected: BufferState) -> None:
    """Promoted, reverted, replaced: never again. Refused or held: when its objects changed. Held: also when it is approved."""
    assert expected is state_of(batch, entry)


def test_every_batch_is_counted_once_and_the_first_are_named() -> None:
    refused = [a_batch(f"F{n:02}", BatchState.REFUSED, objects=()) for n in range(25)]
    ledger = a_ledger(batches=[a_batch("P"), a_batch("W", BatchState.REVERTED, rows=None), *refused])
    found = [buffered("A", size=7), buffered("I", complete=False), buffered("P"), buffered("W")]
    strays = [NoBatch(f"stray{n:02}", "no batch", too_large=n >= 25) for n in range(30)]

    made = digested(*found, *(buffered(e.id) for e in refused), *strays, ledger=ledger)

    assert (made.batches, made.bytes, ids(made)) == (1, 7, ["A"])
    assert (made.incomplete, made.promoted, made.withheld, made.refused) == (1, 1, 1, 25)
    assert made.refused_ids == tuple(f"F{n:02}" for n in range(20))
    assert (made.invalid, made.invalid_folders[0], len(made.invalid_folders)) == (30, ("stray00", "no batch"), 20)
    assert made.unrelated == 25, "a batch with too many files does not keep a new Dataset from claiming its buffer"
    assert made.objects == 57


@pytest.mark.parametrize("names", [1, 2, 7, 1000])
def test_the_oldest_are_known_and_the_others_counted_wherever_in_the_listing_they_come(
    names: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OBJECTS_PER_PIECE", 3)
    batches = [buffered(f"b{n:03}", age_seconds=n * 37 % 101) for n in range(100)]
    by_age = sorted(batches, key=lambda b: (b.oldest_time, b.id))

    made = digested(*batches, names=names)

    assert ids(made) == [b.id for b in by_age[:names]]
    assert (made.batches, made.bytes) == (100, 1000)


def test_the_ledger_is_asked_once_for_each_piece_of_the_listing() -> None:
    asked: list[int] = []

    def look_up(wanted: Sequence[str]) -> Mapping[str, BatchEntry]:
        asked.append(len(wanted))
        return {}

    digest((buffered(f"b{n}") for n in range(1300)), look_up, 10, 3600, NOW)

    assert asked == [500, 500, 300]  # of two objects each


def test_two_folders_of_one_id_do_not_wait_wherever_they_are() -> None:
    """Which of them is the batch is nobody's to guess, and promoting both would double it."""
    twin = replace(buffered("a b"), folder=f"{ROOT}/batch_id=a%20b")

    made = digested(buffered("a b"), buffered("c"), *(buffered(f"d{n}") for n in range(2000)), twin, names=5000)

    assert "a b" not in ids(made)
    assert (made.batches, made.invalid) == (2001, 2)
    reported = "several names in the buffer belong to the batch 'a b'"
    assert dict(made.invalid_folders) == {"batch_id=a b": reported, "batch_id=a%20b": reported}


@pytest.mark.parametrize("names", [1, 8, 1000])
def test_old_folders_of_one_id_do_not_take_the_places_of_other_batches(
    names: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay in the buffer until somebody corrects them. If they filled the list, nothing would ever be promoted."""
    monkeypatch.setattr(module, "OBJECTS_PER_PIECE", 3)
    twins = [buffered(f"t {n}", age_seconds=1000 + n) for n in range(20)]
    others = [replace(t, folder=t.folder.replace(" ", "%20")) for t in twins]
    good = [buffered(f"g{n:02}", age_seconds=100 - n) for n in range(50)]
    found = (*twins, *good, *others)

    made = digested(*found, names=names, doubled=digested(*found, names=names).doubled)

    assert ids(made) == [b.id for b in good[:names]]
    assert (made.batches, made.bytes, made.invalid) == (50, 500, 40)
    assert made.is_cut == (names < 50)
    corrected = digested(*twins, *good, names=names, doubled=made.doubled)
    assert ids(corrected)[0] == "t 19", "one that has a single folder again is the oldest"
    assert (corrected.batches, corrected.invalid, corrected.doubled) == (70, 0, frozenset())


def test_a_folder_that_comes_in_two_pieces_does_not_wait() -> None:
    """From a store that lists in no order: half of a batch would be taken for all of it."""
    objects = [listed(f"{ROOT}/batch_id={k}") for k in ("A/_SUCCESS", "A/o", "B/_SUCCESS", "B/p", "A/p")]

    made = digested(*folders_of(objects, ROOT, Directories("batch_id")))

    assert ids(made) == ["B"]


def test_batches_whose_retention_has_passed_are_counted_until_a_sweep_begins() -> None:
    batches = [buffered(i) for i in "ABC"]
    young = buffered("Y")
    ledger = a_ledger(batches=[*map(promoted, batches), promoted(young, time=NOW)])

    made = digested(*batches, young, ledger=ledger)

    assert (made.expired, made.promoted) == (3, 4)
    assert (made.swept().expired, made.swept().promoted) == (0, 4)


def test_what_was_added_to_a_promoted_batch_is_named() -> None:
    batch = buffered("A")
    ledger = a_ledger(batches=[promoted(buffered("A", etag="as promoted"))])

    made = digested(batch, ledger=ledger)

    assert (made.unexpected, made.unexpected_keys) == (1, (batch.data_objects[0].key,))
    assert made.expired == 0


def test_on_a_later_ledger_what_was_settled_meanwhile_does_not_wait_but_is_counted_as_what_it_is() -> None:
    """A run or a Restatement has committed since the buffer was listed."""
    found = [*(buffered(i, size=10, age_seconds=age) for age, i in enumerate("DCBA")), buffered("E"), buffered("W")]
    before = a_ledger(batches=[a_batch("F", BatchState.REFUSED, objects=())])
    made = digested(*found, buffered("F"), ledger=before)
    judged = buffered("B").data_objects
    settled = (
        a_batch("A"),
        a_batch("B", BatchState.REFUSED, objects=judged),
        a_batch("W", BatchState.REVERTED, rows=None),
    )

    left = made.as_of(a_ledger(batches=settled).batches)

    assert (ids(left), left.batches, left.bytes) == (["E", "C", "D"], 3, 30)
    assert (left.promoted, left.withheld, left.refused, left.refused_ids) == (1, 1, 2, ("F", "B"))
    assert left.as_of(a_ledger(batches=settled).batches) == left
    assert made.as_of({}) == made


def test_held_batches_are_counted_and_named_and_an_approval_is_part_of_what_waits() -> None:
    """So that the run of an approved batch is another one than the run that held it."""
    held = a_batch("H", BatchState.HELD, objects=buffered("H").data_objects)
    approved = a_batch("O", BatchState.HELD, objects=buffered("O").data_objects, restatement="ns/approve/1")
    changed = replace(approved, id="C", objects=buffered("C", etag="old").data_objects)
    ledger = a_ledger(batches=[held, approved, changed])

    made = digested(*map(buffered, "HOC"), ledger=ledger)

    assert (made.batches, made.held, made.held_ids) == (2, 1, ("H",))
    assert {b.id: b.approval for b in made.oldest} == {"O": "ns/approve/1", "C": ""}
    later = digested(buffered("N"))
    settled = a_ledger(batches=[a_batch("N", BatchState.HELD, objects=buffered("N").data_objects)])
    assert (later.as_of(settled.batches).held, later.as_of(settled.batches).held_ids) == (1, ("N",))


def arrived(known: BufferDigest, *came: BufferedBatch, most: int = 10, entries: Any = None) -> BufferDigest:
    return with_folders(known, {b.folder.rpartition("/")[2]: b for b in came}, entries or {}, most)


def test_a_batch_that_came_since_waits_as_if_it_had_been_listed() -> None:
    before = [buffered("A"), buffered("C")]
    came = [buffered("B", age_seconds=90, size=5), buffered("D", age_seconds=1)]

    made = arrived(digested(*before), *came)

    assert (made.oldest, made.bytes) == (digested(*before, *came).oldest, 35)


def test_a_batch_with_two_notifications_is_counted_once() -> None:
    again = arrived(digested(buffered("A"), buffered("B")), buffered("A", size=30))

    assert (again.batches, again.bytes, ids(again)) == (2, 40, ["A", "B"])
    assert arrived(again, buffered("A", size=30)) == again


def test_a_folder_that_emptied_or_is_no_batch_does_not_wait() -> None:
    known = digested(*map(buffered, "ABC"))

    left = with_folders(known, {"batch_id=A": None, "batch_id=B": NoBatch("batch_id=B", "why")}, {}, 10)

    assert (left.batches, left.bytes, ids(left)) == (1, 10, ["C"])


def test_what_the_ledger_has_settled_or_is_incomplete_does_not_wait() -> None:
    refused, changed = (a_batch(i, BatchState.REFUSED, objects=buffered(i).data_objects) for i in "RN")
    came = [buffered("P"), buffered("R"), buffered("N", size=3), buffered("I", complete=False)]

    made = arrived(digested(), *came, entries={"P": a_batch("P"), "R": refused, "N": changed})

    assert ids(made) == ["N"]  # refused with other objects than these


def test_a_second_folder_of_one_id_makes_both_no_batch() -> None:
    twin = replace(buffered("a b"), folder=f"{ROOT}/batch_id=a%20b")

    assert ids(arrived(digested(buffered("a b"), buffered("C")), twin)) == ["C"]


@pytest.mark.parametrize(
    ("found", "after"),
    [
        ([], ""),
        ([buffered("A"), NoBatch("notes", "no batch")], "batch_id=A"),
        ([buffered("A"), buffered("B", complete=False), buffered("C")], "batch_id=B"),
        ([buffered("A"), buffered("B", complete=False, age_seconds=86_400), buffered("C")], "batch_id=C"),
    ],
)
def test_new_batches_are_looked_for_from_the_first_that_a_producer_is_writing(
    found: list[BufferedBatch | NoBatch], after: str
) -> None:
    """Unless it was left unfinished long ago."""
    newest = Newest(NOW)

    assert list(newest.passing(found)) == found
    assert newest.after == after


def test_only_what_a_run_takes_is_known_and_then_nothing_changes_until_the_next_listing() -> None:
    """Who is not known cannot be told from who is new."""
    full = arrived(digested(buffered("A"), buffered("B")), buffered("C", age_seconds=90), most=2)

    assert (full.batches, ids(full), full.is_cut) == (3, ["C", "A"], True)
    assert arrived(full, buffered("B"), most=2) == full
