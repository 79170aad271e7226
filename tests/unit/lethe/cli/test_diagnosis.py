"""From what was seen of a table to what is wrong with it: no file is needed for that."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.cli.diagnosis import Examined, ExaminedBatches, Finding, Level, ListedFile, diagnose, is_healthy
from lethe.cli.history import ChunkKeys, Layers
from lethe.ledger.overlay import fold
from lethe.ledger.root import Chunk

from tests.support.builders import NOW, a_file, a_history, a_snapshot, ago

DAY = timedelta(days=1)
SOUND = Examined(
    table="lite.air.flights",
    location="s3://lake/air/flights",
    format_version=2,
    head_id=2,
    snapshots=a_history(a_snapshot(1), a_snapshot(2, 1, ledger="L/root")),
    wanted_column="batch_id",
    remembered_field_id=7,
    batch_field_id=7,
    column="batch_id",
    sorted_by_batch=True,
    metrics_mode="full",
    claim="air/flights",
    ledger_since=0,
    files=(a_file("A"), a_file("B", "C")),
    needed=frozenset({"root", "t.avro"}),
    listed=(ListedFile("root", ago(days=9)), ListedFile("t.avro", ago(days=9))),
    batches=ExaminedBatches("lite.air.flights_batches", current=True, version=2),
)


def codes(seen: Examined, level: Level | None = None) -> set[str]:
    return {f.code for f in diagnose(seen, NOW, DAY) if level is None or f.level is level}


def the(code: str, seen: Examined) -> Finding:
    (found,) = [f for f in diagnose(seen, NOW, DAY) if f.code == code]
    return found


def test_a_sound_table_has_notes_only() -> None:
    found = diagnose(SOUND, NOW, DAY)

    assert {f.code for f in found} == {"Snapshots", "Claimed"}
    assert is_healthy(found)


def test_a_head_without_a_ledger_is_bare_and_counted() -> None:
    bare = replace(SOUND, head_id=4, snapshots={**SOUND.snapshots, 3: a_snapshot(3, 2), 4: a_snapshot(4, 3)})

    found = the("BareHead", bare)

    assert found.level is Level.WARNING
    assert "newest 2 snapshots" in found.what
    assert not is_healthy([found])


def test_a_table_that_never_had_a_ledger_has_no_bare_head() -> None:
    never = replace(SOUND, snapshots=a_history(a_snapshot(1), a_snapshot(2, 1)), needed=frozenset(), listed=())

    assert "NoLedger" in codes(never, Level.NOTE)
    assert "BareHead" not in codes(never)


def test_a_missing_ledger_file_is_an_error_and_an_old_unneeded_one_an_orphan() -> None:
    seen = replace(
        SOUND,
        listed=(
            ListedFile("root", ago(days=9)),
            ListedFile("lost-race.avro", ago(days=2)),
            ListedFile("under-way.avro", ago(hours=2)),
        ),
    )

    missing, orphan = the("LedgerFileMissing", seen), the("LedgerFileOrphaned", seen)

    assert (missing.level, "t.avro" in missing.what) == (Level.ERROR, True)
    assert (orphan.level, "lost-race.avro" in orphan.what, "under-way" in orphan.what) == (Level.WARNING, True, False)


def test_nothing_is_called_an_orphan_while_a_root_cannot_be_read() -> None:
    """It might name the file."""
    seen = replace(
        SOUND, unreadable=("root is gone",), listed=(*SOUND.listed, ListedFile("perhaps-its.avro", ago(days=9)))
    )

    assert "LedgerUnreadable" in codes(seen, Level.ERROR)
    assert "LedgerFileOrphaned" not in codes(seen)


@pytest.mark.parametrize(
    ("changes", "code", "level"),
    [
        ({"format_version": 1}, "FormatVersionTooOld", Level.ERROR),
        ({"batch_field_id": None, "column": None}, "BatchColumnDropped", Level.ERROR),
        ({"batch_field_id": None, "column": None, "remembered_field_id": None}, "BatchColumnMissing", Level.ERROR),
        ({"column": "load"}, "BatchColumnRenamed", Level.NOTE),
        ({"lost": {1: "its ancestor was expired"}}, "LedgerLost", Level.ERROR),
        ({"sorted_by_batch": False}, "NotSorted", Level.WARNING),
        ({"unsorted": frozenset({"s3://lake/t/data/A-A"})}, "UnsortedFiles", Level.WARNING),
        ({"metrics_mode": "truncate(16)"}, "MetricsTruncated", Level.WARNING),
        ({"files": (a_file(None), a_file("A"))}, "BoundsMissing", Level.WARNING),
        ({"files": (a_file("2013-01-01T00:00", "Z"),)}, "BoundsTruncated", Level.WARNING),
        ({"claim": None}, "Unclaimed", Level.NOTE),
        ({"ledger_since": None}, "LedgerStartUnknown", Level.WARNING),
        (
            {"snapshots": a_history(*(a_snapshot(i, i - 1 or None, ledger="L") for i in range(1, 1002)))},
            "ManySnapshots",
            Level.WARNING,
        ),
    ],
)
def test_each_thing_that_is_wrong_is_found(changes: dict[str, object], code: str, level: Level) -> None:
    seen = replace(SOUND, **changes)  # type: ignore[arg-type]

    found = the(code, seen)

    assert found.level is level
    assert level is Level.NOTE or found.do


def test_a_bound_of_16_characters_that_is_a_batch_id_was_not_cut() -> None:
    file = a_file("2013-01-01T00:00")

    assert "BoundsTruncated" not in codes(replace(SOUND, files=(file,), known_bounds=frozenset({"2013-01-01T00:00"})))


def test_the_gravest_come_first() -> None:
    seen = replace(SOUND, claim=None, sorted_by_batch=False, format_version=1)

    levels = [f.level for f in diagnose(seen, NOW, DAY)]

    assert levels == sorted(levels, key=list(Level).index)
    assert levels[0] is Level.ERROR


def test_a_location_that_ends_in_a_slash_puts_the_ledger_in_danger() -> None:
    found = the("LocationEndsInSlash", replace(SOUND, location="s3://lake/air/flights/"))

    assert found.level is Level.WARNING
    assert "SET LOCATION" in found.do


def test_a_table_of_batches_with_other_counts_than_its_ledger_needs_a_rebuild() -> None:
    wrong = replace(SOUND, batches=ExaminedBatches("lite.air.flights_batches", current=True, version=2, agrees=False))

    assert "`lethe track lite.air.flights --rebuild`" in the("BatchesTableWrong", wrong).do


chunk_lists = st.lists(st.tuples(st.booleans(), st.frozensets(st.sampled_from("abcdefgh"))), max_size=6)


def folded(chunks: list[Chunk], files: dict[str, ChunkKeys]) -> set[object]:
    return set(fold((c.removes, dict.fromkeys(files[c.file].keys)) for c in chunks)[0])


@given(
    chunk_lists,
    st.lists(st.integers(0, 5), max_size=6, unique=True),
    st.lists(st.integers(0, 5), max_size=6, unique=True),
)
def test_sizes_and_differences_are_those_of_the_folded_sets(
    made: list[tuple[bool, frozenset[str]]], before: list[int], after: list[int]
) -> None:
    files = {
        str(n): ChunkKeys(keys, min(keys, default=None), max(keys, default=None)) for n, (_, keys) in enumerate(made)
    }
    all_chunks = [Chunk(str(n), len(keys), 0, removes) for n, (removes, keys) in enumerate(made)]
    then = [all_chunks[n] for n in sorted(before) if n < len(all_chunks)]
    now = [all_chunks[n] for n in sorted(after) if n < len(all_chunks)]
    layers = Layers(files)

    sizes, changed = (layers.size(then), layers.size(now)), layers.changed(then, now)

    was, is_ = folded(then, files), folded(now, files)
    assert sizes == (len(was), len(is_))
    assert changed == (len(is_ - was), len(was - is_))
