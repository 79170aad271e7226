import json
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe_operator.publish import changes
from lethe_operator.publish.changes import EntryChange, of_batch, of_purged, pieces_of, purged_ids
from lethe_operator.publish.events import MODELS, EventType, TableOf, schema_of, type_of

from tests.support.builders import NOW, a_batch

COMMON = {"table": TableOf(catalog="lite", name="air.flights", uuid="u"), "ledger_version": 7, "snapshot_id": 70}
STATES = list(BatchState)


def entry(state: BatchState | None, **more: object) -> BatchEntry | None:
    return None if state is None else a_batch("A", state, **more)


@pytest.mark.parametrize("before", [None, *STATES])
@pytest.mark.parametrize("after", [None, *STATES])
def test_each_change_of_state_has_one_event_that_fits_its_schema(
    before: BatchState | None, after: BatchState | None
) -> None:
    data = of_batch(EntryChange(entry(before), entry(after)), COMMON)

    if before == after:
        assert data is None
        return
    assert data is not None
    expected = {
        None: EventType.BATCH_FORGOTTEN,
        BatchState.PROMOTED: EventType.BATCH_PROMOTED
        if before in (None, BatchState.REFUSED, BatchState.HELD)
        else EventType.BATCH_RESTORED,
        BatchState.REFUSED: EventType.BATCH_REFUSED,
        BatchState.HELD: EventType.BATCH_HELD,
        BatchState.REVERTED: EventType.BATCH_REVERTED,
        BatchState.REPLACED: EventType.BATCH_REPLACED,
        BatchState.ERASED: EventType.BATCH_ERASED,
    }[after]
    assert type_of(data) is expected
    jsonschema.validate(json.loads(data.to_json()), schema_of(expected))


def test_another_time_or_run_alone_is_no_event_and_another_refusal_or_restatement_is() -> None:
    refused = a_batch("A", BatchState.REFUSED, refusal="BadSchema: column x")
    reverted = a_batch("A", BatchState.REVERTED, restatement="ns/r/1")
    held = a_batch("A", BatchState.HELD, refusal="CheckFailed: check c")

    for known, changed, is_event in (
        (refused, replace(refused, run="other"), False),
        (refused, a_batch("A", BatchState.REFUSED, refusal="BadSchema: column y"), True),
        (held, replace(held, restatement="ns/approve/1"), False),
        (reverted, replace(reverted, run="other", partitions=("0/[]",)), False),
        (reverted, replace(reverted, restatement="ns/r/2"), True),
        (reverted, replace(reverted, evict_by=NOW), True),
        (a_batch("A", snapshot_id=1), a_batch("A", snapshot_id=2), True),
    ):
        assert (of_batch(EntryChange(known, changed), COMMON) is not None) == is_event


def test_a_long_refusal_is_cut() -> None:
    data = of_batch(EntryChange(None, a_batch("A", BatchState.REFUSED, refusal="Bad: " + "x" * 9000)), COMMON)

    assert data is not None
    assert len(json.loads(data.to_json())["message"]) == changes.MESSAGE_AT_MOST


def test_a_tombstone_that_an_undo_removes_is_not_purged() -> None:
    batches = {"A": a_batch("A"), "B": a_batch("B", BatchState.ERASED), "C": a_batch("C", BatchState.REVERTED)}

    assert purged_ids(["C", "A", "B", "forgotten"], batches) == ["B", "C"]


@given(st.lists(st.text(min_size=1, max_size=256), max_size=60), st.integers(1, 2000))
def test_pieces_are_the_whole_list_in_order_and_within_the_limit(ids: list[str], limit: int) -> None:
    ids = [i.encode(errors="replace").decode() for i in ids]

    pieces = list(pieces_of(ids, limit))

    assert [i for p in pieces for i in p] == ids
    for piece in pieces:
        size = len(json.dumps(piece, ensure_ascii=False, separators=(",", ":")).encode()) - 1
        assert len(piece) == 1 or size <= limit


def test_every_part_of_a_list_says_how_many_there_are() -> None:
    found = list(of_purged([f"{n:04}" for n in range(2000)], COMMON, "run", changes.ENVELOPE_BYTES + 4000))

    assert [(f.part, f.parts) for f in found] == [(n, len(found)) for n in range(1, len(found) + 1)]
    assert len(found) > 1


def test_every_type_has_a_model_of_its_own_and_a_schema() -> None:
    assert set(MODELS) == set(EventType)
    assert len(set(MODELS.values())) == len(EventType)
    for type in EventType:
        jsonschema.Draft202012Validator.check_schema(schema_of(type))
