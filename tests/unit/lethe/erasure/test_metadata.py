"""What of a table's metadata may tell what erased rows held."""

from dataclasses import replace
from typing import Any

import pytest
from lethe.erasure.holders import holders
from lethe.erasure.progress import DATA, DELETES, HeldFile, History, OpenErasure, mark, open_erasures_of
from lethe.erasure.strays import (
    blocker_if_young,
    clean_from,
    mentioned_in,
    named_in_summaries,
    names_partitions,
    with_versions_before,
)
from lethe.ledger.erasure import Erasure

from tests.support.builders import FIELD, NOW, a_history, a_ledger, a_request_entry, a_snapshot, ago

ERASE, NAME = "ns/erase/0", 4
PURGED = 3


def a_claim(*ids: str, records: bool = False, purged: int | None = PURGED) -> OpenErasure:
    erasure = Erasure(ERASE, NAME if records else FIELD, None)
    ledger = a_ledger(
        requests=[a_request_entry(ERASE, operation="Erase", batch_ids=ids)],
        erasures=(replace(erasure, purged_by=1, purged_at=purged, purged_time=NOW if purged else None),),
    )
    (claim,) = open_erasures_of(ledger, {}, FIELD)
    return claim


def a_story(**gone: HeldFile) -> History:
    """Four snapshots, one on the other, each with a manifest of its own; of each, a file that was removed."""
    line = a_history(*(a_snapshot(i, i - 1 if i > 1 else None, ledger=f"L{i}") for i in range(1, 5)))
    manifests = {i: (f"m{i}",) for i in line}
    return History(line, 4, {}, frozenset(), manifests, {f"m{i}": () for i in line}, {m: (f,) for m, f in gone.items()})


def a_file(bounds: str = "A", at: int | None = 1, content: str = DATA, **changes: Any) -> HeldFile:
    return HeldFile("f", 9, content, at, bounds or None, bounds or None, **changes)


@pytest.mark.parametrize(
    ("claim", "file", "tells"),
    [
        (a_claim("A"), a_file("A"), True),
        (a_claim("A"), a_file("B"), False),
        (a_claim("A"), a_file(""), True),
        (a_claim("A"), a_file("A", at=PURGED), True),
        (a_claim("A"), a_file("A", at=PURGED + 1), False),
        (a_claim("A"), a_file("A", at=None), True),
        (a_claim("A"), a_file("B", content=DELETES), True),
        (a_claim(records=True), a_file("B"), True),
        (a_claim(records=True), a_file("B", at=PURGED + 1), False),
        (a_claim("A", purged=None), a_file("A"), False),
    ],
)
def test_a_manifest_mentions_removed_files_that_may_have_held_rows(
    claim: OpenErasure, file: HeldFile, tells: bool
) -> None:
    """Not of those that came when the rows had left, nor of batches that by their bounds they cannot have held."""
    history = a_story(m2=file)

    assert mentioned_in([claim], history) == ({"m2": frozenset({ERASE})} if tells else {})
    assert holders(history, {}, [claim]) == ({2: frozenset({ERASE})} if tells else {})


def test_a_summary_that_names_partitions_holds_its_snapshot_if_it_was_made_before_the_rows_left() -> None:
    history = a_story()
    reported = {
        i: replace(s, summary={**s.summary, "partitions.name=x": "added-records=1"})
        for i, s in history.snapshots.items()
    }
    history = replace(history, snapshots=reported)

    assert named_in_summaries([a_claim("A")], history).keys() == {1, 2, 3}
    assert holders(history, {}, [a_claim("A")]).keys() == {1, 2, 3}
    assert (named_in_summaries([a_claim("A", purged=None)], history), clean_from(a_claim("A"), history)) == ({}, 4)


def test_table_metadata_reveals_values_only_by_partitions_of_snapshots_before_the_purge() -> None:
    def state(at: int, **summary: str) -> dict[str, Any]:
        return {"snapshots": [{"sequence-number": at, "summary": summary}]}

    claim = a_claim("A")
    assert names_partitions(state(PURGED, **{"partitions.name=x": ""}), claim)
    assert not names_partitions(state(PURGED + 1, **{"partitions.name=x": ""}), claim)
    assert not names_partitions(state(PURGED, **{"changed-partition-count": "1"}), claim)
    assert not names_partitions({}, claim)


def test_numbered_versions_go_from_the_oldest_on() -> None:
    going = {"t/m-m0.avro": {"a"}, "t/v3.metadata.json": {"b"}}
    there = ["t/v10.metadata.json", "t/v2.metadata.json", "t/v3.metadata.json", "t/v1.gz.metadata.json", "t/m-m1.avro"]

    found = with_versions_before(going, there)

    assert list(found) == ["t/m-m0.avro", "t/v1.gz.metadata.json", "t/v2.metadata.json", "t/v3.metadata.json"]
    assert found["t/v2.metadata.json"] == {"a", "b"}


def test_a_young_file_that_no_snapshot_names_is_waited_for_and_named_without_the_value_of_a_partition() -> None:
    blocker = blocker_if_young("s3://b/t/name=x/m.avro", ago(hours=1), NOW)

    assert blocker is not None
    assert (blocker.name, blocker.until) == ("s3://b/t/name=*/m.avro", ago(hours=-23))
    assert blocker_if_young("s3://b/t/m.avro", ago(hours=24), NOW) is None


def test_records_are_in_the_head_as_long_as_an_older_delete_file_with_values_is() -> None:
    """Of whatever partition: it may delete by an erased value, although no data file is left that it is of."""
    old, new = a_file(at=1, content=DELETES, values=True), a_file(at=4, content=DELETES, values=True)
    claim = replace(a_claim(records=True, purged=None), since=3)

    for file, left in ((old, False), (new, True), (replace(old, values=False), True)):
        history = replace(a_story(), files={"f": file}, live=frozenset({"f"}))
        assert [e.is_purged for e in mark([claim], history, {}, NOW).erasures] == ([True] if left else [])
