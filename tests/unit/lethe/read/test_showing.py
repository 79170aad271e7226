"""What a notebook shows of a table is short, and is text wherever it comes from."""

from hypothesis import given
from hypothesis import strategies as st
from lethe.read.scan import html, text

COLUMNS = st.lists(st.tuples(st.text(max_size=700), st.text(max_size=700)), max_size=80)


@given(st.text(max_size=2000), COLUMNS)
def test_a_repr_is_below_600_characters(title: str, columns: list[tuple[str, str]]) -> None:
    assert len(text("Scan", title, columns)) < 600


@given(st.text(max_size=2000), COLUMNS)
def test_no_name_adds_markup(title: str, columns: list[tuple[str, str]]) -> None:
    found = html("Scan", title, columns)

    plain = html("Scan", "t", [("n", "t")] * len(columns))
    assert (found.count("<"), found.count(">")) == (plain.count("<"), plain.count(">"))


def test_columns_are_shown_in_their_order_as_long_as_they_fit() -> None:
    assert text("Scan", "air.flights", [("v", "int64"), ("w", "string")]) == "Scan(air.flights: v int64, w string)"
    assert text("Scan", "t", [("c" * 60, "int64")] * 9).endswith("and 2 more columns)")
