"""Which files a tombstone might be about: a proof by bounds or by partitions, and nothing less, rules a file out."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from lethe.files.bounds import NEVER, FileBounds, Suspects
from lethe.ledger.tombstone import META_PARTITIONS, Tombstone

from tests.support.builders import NOW, a_file, a_tombstone


def of(id: str, *partitions: str) -> Tombstone:
    """A tombstone limited to these partitions; without any, one that may be anywhere."""
    return a_tombstone(id, meta={META_PARTITIONS: "\n".join(partitions)} if partitions else {})


def file_in(partition: str | None, lower: str, upper: str, path: str = "") -> FileBounds:
    return replace(a_file(lower, upper, path=path or f"{partition}{lower}{upper}"), partition=partition)


ids = st.sampled_from("ABCDEF")
partitions = st.sampled_from(["0/[1]", "0/[2]", "1/[1]"])
tombstones = st.lists(
    st.builds(lambda i, ps: of(i, *sorted(ps)), ids, st.sets(partitions, max_size=2)), unique_by=lambda t: t.id
)
files = st.lists(
    st.builds(lambda a, b, p: file_in(p, min(a, b), max(a, b)), ids, ids, st.none() | partitions), max_size=6
)


def may_contain_deleted_rows(tombstone: Tombstone, file: FileBounds) -> bool:
    """In the simplest words there are."""
    assert file.lower is not None
    assert file.upper is not None
    if not file.lower <= tombstone.id <= file.upper:
        return False
    known = tombstone.partitions
    if known is None or file.partition is None or file.partition in known:
        return True
    return any(p.partition("/")[0] != file.partition.partition("/")[0] for p in known)


@given(tombstones=tombstones, files=files)
def test_the_layers_decide_about_each_file_as_each_tombstone_does(
    tombstones: list[Tombstone], files: list[FileBounds]
) -> None:
    suspects = Suspects(tombstones)

    for f in files:
        wanted = {t.id for t in tombstones if may_contain_deleted_rows(t, f)}
        assert set(suspects.within(f)) == wanted
        assert len(suspects.within(f)) == len(wanted)
        assert suspects.might_hold(f) == bool(wanted)
    assert suspects.covered(files) == {t.id for t in tombstones if any(may_contain_deleted_rows(t, f) for f in files)}


def test_a_batch_that_is_remembered_elsewhere_does_not_have_a_file_read() -> None:
    """Ids that say nothing of the day lie within the bounds of every day's file."""
    suspects = Suspects([of("M", "0/[1]")])

    found = [suspects.might_hold(file_in(f"0/[{day}]", "A", "Z")) for day in range(1, 4)]

    assert found == [True, False, False]


def test_the_earliest_deadline_is_that_of_the_tombstones_that_a_file_might_hold() -> None:
    due = {"A": 3, "C": 1, "E": 2}
    suspects = Suspects([a_tombstone(i, evict_by=NOW + timedelta(days=n)) for i, n in due.items()] + [of("D")])

    found = [suspects.earliest(a_file(*bounds)) for bounds in ("AB", "AC", "DE", "DD", "XZ")]

    assert found == [NOW + timedelta(days=n) for n in (3, 1, 2)] + [NEVER, NEVER]
