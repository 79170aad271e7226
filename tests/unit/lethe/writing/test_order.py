"""Rows in a sort order, as Python sorts them."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from lethe.writing.data_files import in_order
from lethe.writing.layout import SortKey

VALUES = st.lists(st.tuples(st.none() | st.text(max_size=2), st.none() | st.integers(0, 3)), max_size=20)
KEYS = st.lists(
    st.builds(SortKey, st.sampled_from(["text", "number"]), st.booleans(), st.booleans()), min_size=1, max_size=2
)


@given(VALUES, KEYS, st.booleans())
def test_rows_are_sorted_and_equal_ones_stay_in_their_order(
    values: list[tuple[Any, Any]], keys: list[SortKey], as_dictionary: bool
) -> None:
    text = pa.array([t for t, _ in values], pa.string())
    table = pa.table(
        {
            "text": text.dictionary_encode() if as_dictionary else text,
            "number": pa.array([n for _, n in values], pa.int64()),
            "at": range(len(values)),
        }
    )
    expected = table.to_pylist()
    for key in reversed(keys):
        expected = by(expected, key)

    assert in_order(table, keys).to_pylist() == expected


def by(rows: list[dict[str, Any]], key: SortKey) -> list[dict[str, Any]]:
    def value(row: dict[str, Any]) -> Any:
        found = row[key.name]
        return found.encode() if isinstance(found, str) else found

    nulls = [r for r in rows if r[key.name] is None]
    others = sorted((r for r in rows if r[key.name] is not None), key=value, reverse=key.is_descending)
    return nulls + others if key.nulls_first else others + nulls


def test_rows_that_are_in_order_are_not_moved() -> None:
    table = pa.table({"n": [1, 1, 2]})

    assert in_order(table, [SortKey("n", False, True)]) is table
