"""Tables and records on terminals of any width: nothing is cut, and only a word that is too long makes a line too long."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.cli import layout
from rich.cells import cell_len

HEADERS = ("NAME", "STATE", "REASON", "TEXT")
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=40)
CELLS = st.lists(WORDS, max_size=8).map(" ".join)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), max_size=4)
OPTIONAL = st.lists(st.sampled_from(HEADERS[1:]), unique=True)


def plain(shown: layout.PrintedTable) -> list[str]:
    return [line.plain for line in shown.lines]


def words(*texts: str) -> Counter[str]:
    return Counter(word for text in texts for word in text.split(" ") if word)


@given(rows=ROWS, width=st.integers(10, 130), optional=OPTIONAL)
def test_no_word_is_cut_and_no_line_is_too_wide(rows: list[tuple[str, ...]], width: int, optional: list[str]) -> None:
    shown = layout.table(HEADERS, rows, width, optional=optional)

    printed = words(*plain(shown))
    kept = [n for n, header in enumerate(HEADERS) if header not in shown.left_out]
    assert words(*(row[n] for row in rows for n in kept)) <= printed
    too_wide = [line for line in plain(shown) if cell_len(line) > width]
    assert [line for line in too_wide if " " in line.strip(" ")] == []
    assert set(shown.left_out) <= set(optional)


@given(rows=ROWS)
def test_a_pipe_gets_one_line_for_each_row(rows: list[tuple[str, ...]]) -> None:
    shown = layout.table(HEADERS, rows, None)

    assert (len(shown.lines), shown.left_out) == (len(rows) + 1, ())


def test_texts_are_wrapped_before_columns_are_left_out() -> None:
    row = ("flights", "NotReady", "TableNotFound", "the table main.air.flights does not exist in the catalog")

    shown = layout.table(HEADERS, [row], 70, optional=["TEXT"])

    assert plain(shown) == [
        "NAME     STATE     REASON         TEXT",
        "flights  NotReady  TableNotFound  the table main.air.flights does not",
        "                                  exist in the catalog",
    ]


def test_the_least_important_columns_are_left_out_first() -> None:
    row = ("a" * 30, "b" * 20, "c" * 20, "d" * 20)

    shown = layout.table(HEADERS, [row], 60, optional=["REASON", "TEXT", "STATE"])

    assert shown.left_out == ("REASON", "TEXT")


def test_rows_that_do_not_fit_become_records_with_all_columns() -> None:
    rows = [("a" * 30, "Ready", "", "all is well"), ("b", "Failed", "TableNotFound", "x" * 24)]

    shown = layout.table(HEADERS, rows, 32, optional=["TEXT"])

    assert plain(shown) == [
        "NAME",
        "a" * 30,
        "STATE   Ready",
        "TEXT    all is well",
        "",
        "NAME    b",
        "STATE   Failed",
        "REASON  TableNotFound",
        f"TEXT    {'x' * 24}",
    ]


def test_numbers_are_aligned_to_the_right() -> None:
    shown = layout.table(("ROWS", "ID"), [("7", "a"), ("1,234", "b")], 80, frozenset({"ROWS"}))

    assert plain(shown) == [" ROWS  ID", "    7  a", "1,234  b"]


@pytest.mark.parametrize(("value", "printed"), [("a\nb\tc", "a b c"), ("\x1b[2Jx", "\\x1b[2Jx"), ("\x9bx", "\\x9bx")])
def test_a_value_cannot_move_the_cursor(value: str, printed: str) -> None:
    assert plain(layout.table(("V",), [(value,)], None))[1] == printed
    assert [line.plain for line in layout.record([("V", value)], 80)] == [f"V  {printed}"]


def test_a_cell_has_the_style_of_its_text_also_where_it_is_wrapped() -> None:
    shown = layout.table(("A", "STATE"), [("x " * 30, "rows in table")], 40, styles={"rows in table": "yellow"})

    assert [s.style for s in shown.lines[1].spans] == ["yellow"]
