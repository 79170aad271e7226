"""`lethe ledger` and `lethe batches` say what lies in the files, and find what does not agree."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from lethe.contract.run import Provenance
from lethe.ledger import format
from lethe.ledger.ledger import BatchState

from tests.support.builders import NOW, RUN, a_batch, a_request_entry, a_tombstone, ago
from tests.tables.lethe.cli.conftest import NAME, Kept

Lethe = Callable[..., Result]


def test_show_counts_what_the_ledger_of_the_head_holds(flights: Kept, lethe: Lethe) -> None:
    flights.append("A", "B")
    carrier = flights.commit("A", batches=[a_batch("A", BatchState.REVERTED), a_batch("B"), a_batch("C")])
    head = flights.append("C")

    shown = json.loads(lethe("ledger", "show", NAME, "--json").output)

    assert (shown["snapshotId"], shown["carrierId"], shown["bare"], shown["version"]) == (head, carrier, 1, 1)
    assert (shown["tombstones"], shown["batches"]) == (1, {"promoted": 2, "reverted": 1})
    assert shown["oldestTombstoneTime"] == f"{NOW:%Y-%m-%dT%H:%M:%SZ}"
    assert [c["records"] for c in shown["chunks"]["tombstones"]] == [1]


def test_show_prints_the_same_as_text(flights: Kept, lethe: Lethe) -> None:
    flights.commit("A", batches=[a_batch("A", BatchState.REVERTED)])

    result = lethe("ledger", "show", NAME)

    assert result.exit_code == 0
    for line in ("tombstones    1", "batches       1 reverted", f"carrier       snapshot {flights.head}"):
        assert line in result.output


def test_show_reports_that_a_table_has_no_ledger(flights: Kept, lethe: Lethe) -> None:
    flights.append("A")

    assert "none: Lethe has deleted no rows" in lethe("ledger", "show", NAME).output


def test_log_lists_the_newest_first_and_marks_the_bare(flights: Kept, lethe: Lethe) -> None:
    first = flights.append("A", "B")
    second = flights.commit("A")
    third = flights.append("B")

    listed = json.loads(lethe("ledger", "log", NAME, "--json").output)

    assert [(line["snapshotId"], line["bare"]) for line in listed] == [(third, True), (second, False), (first, True)]
    revert = listed[1]
    assert (revert["runKind"], revert["runId"]) == ("Restatement", RUN)
    assert (revert["added"], revert["deleted"], revert["total"]) == (1, 0, 1)
    assert listed[0]["refs"] == ["main"]
    assert "(bare)" in lethe("ledger", "log", NAME).output.splitlines()[1]


def test_log_is_as_long_as_asked_for(flights: Kept, lethe: Lethe) -> None:
    for _ in range(3):
        flights.commit()

    result = lethe("ledger", "log", NAME, "--limit", 2)

    assert "2 of 3 snapshots" in result.output
    assert len(json.loads(lethe("ledger", "log", NAME, "--limit", 2, "--json").output)) == 2
    assert len(json.loads(lethe("ledger", "log", NAME, "--all", "--json").output)) == 3


def test_verify_of_a_correct_table_reports_how_much_it_read(flights: Kept, lethe: Lethe) -> None:
    flights.append("A", "B")
    flights.commit("A", "B", batches=[a_batch("A", BatchState.REVERTED)])
    flights.commit(removed=["A"], vacuumed=[a_tombstone("A")], kind="Vacuum")
    flights.append("C")

    result = lethe("ledger", "verify", NAME)

    assert (result.exit_code, result.output.splitlines()[-1]) == (
        0,
        "lite.air.flights: 4 snapshots, 2 ledgers, 4 files: no problems",
    )


def fewer(file: Path) -> None:
    file.write_bytes(format.TOMBSTONES.encode([a_tombstone("A", namespace=2)]).content)


def other_bounds(root: Path) -> None:
    root.write_text(root.read_text().replace('"lower": "A"', '"lower": "B"'))


DAMAGES = {
    "a missing file takes its snapshot with it": ("tombstones.avro", Path.unlink, ["snapshot {head}: ", "{name}"]),
    "an empty file": ("batches.avro", lambda f: f.write_bytes(b""), ["{name} is not readable as batches"]),
    "a file of something else": ("batches.avro", lambda f: f.write_bytes(b"x"), ["{name} is not readable as batches"]),
    "a torn file": ("batches.avro", lambda f: f.write_bytes(b"Obj\x01"), ["{name} is not readable as batches"]),
    "a file with less than its root records": (
        "tombstones.avro",
        fewer,
        [
            "{name} holds 1 tombstones; the root says 2",
            "snapshot {head}: tombstone.metrics.total.count is 2, but the files hold 1",
        ],
    ),
    # A look-up leaves files out by them: what they miss would be read as not deleted.
    "bounds that differ from those of the file": ("root.json", other_bounds, ["differ from those in the root"]),
    "a root that is gone": ("root.json", Path.unlink, ["{name}"]),
}


@pytest.mark.parametrize(("file", "damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_verify_finds_each_damage(
    flights: Kept, lethe: Lethe, file: str, damage: Callable[[Path], object], said: list[str]
) -> None:
    head = flights.commit("A", "B", batches=[a_batch("A", BatchState.REVERTED)])
    damaged = flights.ledger_file(f"*-{file}")
    damage(damaged)

    result = lethe("ledger", "verify", NAME)

    assert result.exit_code == 1
    assert [t for t in said if t.format(head=head, name=damaged.name) not in result.output] == []


def test_batches_are_listed_by_their_last_change_and_chosen_by_state_or_id(flights: Kept, lethe: Lethe) -> None:
    known = [
        a_batch("A", BatchState.REPLACED, time=ago(hours=1), replaced_by="A2", restatement="ns/fix/0123"),
        a_batch("A2", time=ago(hours=2)),
        a_batch("C", BatchState.REFUSED, refusal="SchemaMismatch: no column v"),
    ]
    flights.commit("A", batches=known)

    def ids(*options: str) -> list[str]:
        return [b["id"] for b in json.loads(lethe("batches", NAME, "--json", *options).output)]

    assert ids() == ["A2", "A", "C"]
    assert ids("--state", "replaced", "--state", "refused") == ["A", "C"]
    assert ids("--id", "A2") == ["A2"]
    result = lethe("batches", NAME).output
    assert "ns/fix, replaced by A2" in result
    assert "SchemaMismatch: no column v" in result


def test_a_batch_with_the_longest_id_is_found_by_it(flights: Kept, lethe: Lethe) -> None:
    """It has 1,024 bytes. Another one differs in the last character."""
    start = "\U0001f600" * 255
    one, other = (start + end for end in ("\U0001f600", "\U0001f601"))
    flights.append(one, other)
    flights.commit(one, batches=[a_batch(one, BatchState.REVERTED), a_batch(other)])

    (found,) = json.loads(lethe("batches", NAME, "--json", "--id", one).output)

    assert (found["id"], found["state"]) == (one, "reverted")
    assert lethe("batches", NAME, "-o", "name").output.splitlines().count(other) == 1


def test_who_asked_and_why_is_shown_with_the_batches_also_without_the_resource(flights: Kept, lethe: Lethe) -> None:
    asked = Provenance(reason="sent twice", ticket="LAKE-7", marks={"lethe.dev/requested-by": "ana"})
    reverted = [a_batch(i, BatchState.REVERTED, restatement=f"ns/{i}/0") for i in "AB"]
    entries = [a_request_entry("ns/A/0", provenance=asked), a_request_entry("ns/B/0")]
    flights.commit("A", "B", batches=[*reverted, a_batch("C")], requests=entries)

    listed = {b["id"]: b for b in json.loads(lethe("batches", NAME, "--json").output)}
    wide = lethe("batches", NAME, "-o", "wide").output

    shown = {i: [b[name] for name in ("requestedBy", "ticket", "reason")] for i, b in listed.items()}
    assert shown == {"A": ["ana", "LAKE-7", "sent twice"], "B": [None] * 3, "C": [None] * 3}
    assert all(text in wide for text in ("REQUESTED BY", "ana", "LAKE-7", "sent twice"))
    assert "LAKE-7" not in lethe("batches", NAME).output


def test_a_batch_that_is_not_in_the_ledger_is_reported_as_unknown(flights: Kept, lethe: Lethe) -> None:
    flights.commit(batches=[a_batch("A")])

    result = lethe("batches", NAME, "--id", "Z")

    assert (result.exit_code, result.output) == (
        10,
        "lethe: UnknownBatch: the ledger of lite.air.flights has no batch 'Z'.\n",
    )


def test_a_batch_has_the_state_that_it_had_at_a_snapshot(flights: Kept, lethe: Lethe) -> None:
    before = flights.commit(batches=[a_batch("A")])
    flights.commit("A", batches=[a_batch("A", BatchState.REVERTED)])

    (then,) = json.loads(lethe("batches", NAME, "--snapshot", before, "--json").output)
    (now,) = json.loads(lethe("batches", NAME, "--json").output)

    assert (then["state"], then["tombstoned"], now["state"], now["tombstoned"]) == ("promoted", False, "reverted", True)
