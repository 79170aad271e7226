"""Which batches of a ledger patterns and ranges choose, and where long lists go."""

import pytest
from lethe.base.errors import InputError
from lethe.contract.settings import Operation
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe_kubectl.id_lists import CONFIG_MAP_BYTES, config_map, with_list
from lethe_kubectl.selection import Selection, choose, matcher, selected
from lethe_operator.resources import manifests
from lethe_operator.resources.manifests import Note

from tests.support.builders import a_batch


def entries(**states: BatchState) -> dict[str, BatchEntry]:
    return {i: a_batch(i, state=s, rows=10) for i, s in states.items()}


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("load-2026-11-*", ["load-2026-11-01", "load-2026-11-30.UA"]),
        ("*-1?-01", ["load-2026-10-01", "load-2026-11-01"]),
        ("load-2026-10-01..load-2026-11-01", ["load-2026-10-01", "load-2026-11-01"]),
        ("load-2026-11..load-2026-11", ["load-2026-11-01", "load-2026-11-30.UA"]),
        ("load-2026-11-02..", ["load-2026-11-30.UA", "other"]),
        ("..load-2026-10", ["load-2026-10-01"]),
    ],
)
def test_a_pattern_and_a_range_choose_ids(pattern: str, chosen: list[str]) -> None:
    matches = matcher(pattern)
    ids = ["load-2026-10-01", "load-2026-11-01", "load-2026-11-30.UA", "other"]
    assert [i for i in ids if matches(i)] == chosen


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(InputError, match=r"InvalidRange: --batches b\.\.a"):
        matcher("b..a")


def test_only_batches_in_a_state_that_changes_are_chosen_and_the_others_are_counted() -> None:
    ledger = entries(a1=BatchState.PROMOTED, a2=BatchState.REVERTED, a3=BatchState.ERASED, b=BatchState.PROMOTED)

    reverted = choose(["b", "new"], ["a*"], ledger, Operation.REVERT)
    erased = choose([], ["a*"], ledger, Operation.ERASE)

    assert (reverted.ids, reverted.rows, reverted.unknown) == (("b", "new", "a1"), 20, 1)
    assert reverted.preview(Operation.REVERT, "flights").splitlines() == [
        "Revert 3 batches of dataset/flights: 20 rows",
        "  first: a1",
        "  last: new",
        "  not in the ledger: 1",
        "  match and are left out: 1 erased, 1 reverted",
    ]
    assert erased.ids == ("a1", "a2")


def test_an_id_that_is_named_twice_counts_once() -> None:
    """The API server refuses it twice."""
    assert selected(Selection(), Operation.REVERT, "flights", ("b", "a", "b"), {}) == ("b", "a")


def test_a_pattern_without_a_batch_to_change_is_refused() -> None:
    with pytest.raises(InputError, match=r"NoMatch: --batches a\* matches no batch to revert \(1 reverted\)"):
        choose([], ["a*"], entries(a=BatchState.REVERTED), Operation.REVERT)


def a_revert(count: int) -> dict[str, object]:
    return manifests.revert("flights", [f"batch-{n:06}" for n in range(count)], Note())


def test_a_thousand_ids_stay_in_the_resource_and_more_go_into_a_config_map_of_its_name() -> None:
    short, no_list = with_list(a_revert(1000))
    long, id_list = with_list(a_revert(1001))

    assert (short, no_list, config_map(short, no_list)) == (a_revert(1000), "", None)
    found = config_map(long, id_list)
    assert found is not None
    name = f"{long['metadata']['name']}-batch-ids"
    assert long["spec"] == {
        "datasetRef": {"name": "flights"},
        "operation": "Revert",
        "batchIdsFrom": {"configMapKeyRef": {"name": name, "key": "batch-ids"}},
    }
    assert found["metadata"] == {"name": name, "labels": {"lethe.dev/batch-ids": "true"}}
    assert found["data"]["batch-ids"].splitlines() == [f"batch-{n:06}" for n in range(1001)]


@pytest.mark.parametrize("batch_id", ["a\nb", "a\r", " a"])
def test_an_id_that_would_be_others_in_a_list_gets_none(batch_id: str) -> None:
    ids = [batch_id, *(f"load-{n}" for n in range(1000))]

    with pytest.raises(InputError, match="InvalidIdList"):
        with_list(manifests.revert("flights", ids, Note()))
    with_list(manifests.revert("flights", ids[:1000], Note()))


def test_a_list_that_no_config_map_can_hold_gets_none() -> None:
    document, id_list = with_list(a_revert(100_000))
    assert len(id_list) > CONFIG_MAP_BYTES
    assert config_map(document, id_list) is None
    with pytest.raises(InputError, match="TooManyIds"):
        with_list(a_revert(100_001))
