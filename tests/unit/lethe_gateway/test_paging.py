"""Cursors."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe_gateway import paging
from lethe_gateway.problems import Kind, Problem

QUESTION = {"dataset": "ns/flights", "states": ["refused"]}


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text()), max_size=4))
def test_a_cursor_gives_its_position_back(position: list[object]) -> None:
    kinds = [type(value) for value in position]

    assert paging.decode(paging.encode(position, QUESTION), QUESTION, *kinds) == position


@pytest.mark.parametrize("character", ["\U0001f600", "é", "\x01", "a", '"'])
def test_the_longest_id_of_a_batch_fits_into_a_cursor(character: str) -> None:
    """256 characters, which may be 1,024 bytes, or 1,536 as escapes of JSON."""
    position = [-(2**63), character * 256]

    cursor = paging.encode(position, QUESTION)

    assert len(cursor) <= paging.MAX_LENGTH
    assert paging.decode(cursor, QUESTION, int, str) == position


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_cursor_is_recognised(at: int, change: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(_padded(paging.encode([1, "b"], QUESTION))))
    raw[at % len(raw)] ^= change
    damaged = base64.urlsafe_b64encode(bytes(raw)).decode().rstrip("=")

    with pytest.raises(Problem) as e:
        paging.decode(damaged, QUESTION, int, str)

    assert e.value.kind is Kind.INVALID_CURSOR


@pytest.mark.parametrize(
    "cursor", ["a", "!!!!", "é", "a" * 5000, "AAAA AAAA", paging.encode([1], {**QUESTION, "states": []})]
)
def test_what_is_no_cursor_of_this_question_is_refused(cursor: str) -> None:
    with pytest.raises(Problem) as e:
        paging.decode(cursor, QUESTION, int)

    assert e.value.kind is Kind.INVALID_CURSOR


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)
