"""What happens to each row that requests of one commit have found."""

from lethe_spark.jobs.restatement.erase import FreshRows
from pyroaring import FrozenBitMap64


def rows(*positions: int) -> FrozenBitMap64:
    return FrozenBitMap64(positions)


def test_each_row_is_erased_or_redacted_by_all_that_want_it_and_hidden_ones_are_left() -> None:
    found = {
        "f": {"erase": rows(1, 2, 9), "twice": rows(2, 3), "a": rows(2, 4, 5, 6, 9), "b": rows(5, 6, 7), "c": rows(6)},
        "g": {"a": rows(9)},
        "h": {"b": rows(1)},
    }
    hidden = {"f": rows(9), "g": rows(9), "h": rows()}

    fresh = FreshRows.of(["erase", "twice"], ["a", "b", "c"], found, hidden)

    assert fresh.erased == {"f": rows(1, 2, 3)}
    assert fresh.redacted == {
        ("a",): {"f": rows(4)},
        ("a", "b"): {"f": rows(5)},
        ("a", "b", "c"): {"f": rows(6)},
        ("b",): {"f": rows(7), "h": rows(1)},
    }
    assert fresh.taken == {"f": rows(1, 2, 3, 4, 5, 6, 7), "h": rows(1)}
    assert fresh.redacted_by_path == {"f": rows(4, 5, 6, 7), "h": rows(1)}
    assert fresh.counts == {"erase": 2, "twice": 1, "a": 3, "b": 4, "c": 1}
