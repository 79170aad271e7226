"""The files that chaos writes say what its acts say."""

from tests.cluster.chaos.player import changes_of


def test_each_row_of_a_change_has_its_own_operation() -> None:
    table = changes_of("b", updates=(10, 34), deletes=(29, 14))

    assert dict(zip(table["id"].to_pylist(), table["op"].to_pylist(), strict=True)) == {
        10: "U",
        14: "D",
        29: "D",
        34: "U",
    }
