"""The rows of the random walks: what a producer writes says what the acts say."""

from tests.model.rows import changes_table, rows_of


def test_batches_have_keys_of_their_own() -> None:
    ids = ["A", "B", "10", "C2", "2C", "a00z", "a010"]
    keys = [row[1] for i in ids for row in rows_of(i, rows=100)]

    assert len(keys) == len(set(keys))


def test_each_row_of_a_change_has_its_own_operation() -> None:
    table = changes_table("b", [("U", 10), ("D", 29), ("U", 34), ("D", 14)])

    assert dict(zip(table["v"].to_pylist(), table["op"].to_pylist(), strict=True)) == {
        10: "U",
        14: "D",
        29: "D",
        34: "U",
    }
