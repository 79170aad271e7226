"""A list of batch ids as people and programs write it: one id per line."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import InputError
from lethe.restatement import group as id_lists
from lethe.restatement.group import LISTED_IDS_AT_MOST, IdList, changed, parse_ids

WHERE = "The list of batch ids in ConfigMap lists, key ids"
# Whatever a batch id may be but an end of line, and a blank at either end.
IDS = st.text(st.characters(exclude_characters="\n\r", exclude_categories=("Cs",)), min_size=1, max_size=256).filter(
    lambda text: text == text.strip()
)


def refused(content: bytes) -> str:
    with pytest.raises(InputError) as raised:
        parse_ids(content, WHERE)
    assert raised.value.reason == "InvalidIdList"
    return raised.value.message


@given(st.lists(IDS, min_size=1), st.sampled_from(["\n", "\r\n", "\n\n"]), st.booleans(), st.booleans())
def test_each_line_is_an_id_once_in_any_script_and_with_any_end_of_line(
    ids: list[str], end: str, ends: bool, marked: bool
) -> None:
    content = (b"\xef\xbb\xbf" if marked else b"") + (end.join(ids) + (end if ends else "")).encode()

    if marked or not ids[0].startswith("\ufeff"):
        assert parse_ids(content, WHERE) == IdList(tuple(dict.fromkeys(ids)), hashlib.sha256(content).hexdigest())


def test_characters_that_end_lines_elsewhere_are_part_of_an_id() -> None:
    assert parse_ids("a\u2028b\x0bc\x85d\n".encode(), WHERE).ids == ("a\u2028b\x0bc\x85d",)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the list contains no batch id"),
        (b"\n\r\n\n", "the list contains no batch id"),
        (b"a\nsecret\xff\n", "the list is not UTF-8 at byte 8"),
        (b"a\n\n secret", "line 3 begins or ends with a blank"),
        (b"secret\t\n", "line 1 begins or ends with a blank"),
        (b"a\n" + b"s" * 257, "line 2 has 257 characters, expected at most 256"),
    ],
)
def test_what_is_no_list_is_refused_by_its_line_and_not_quoted(content: bytes, why: str) -> None:
    """It may be another file altogether, and statuses are read by many."""
    message = refused(content)

    assert message.startswith(f"{WHERE}: {why}.")
    assert "secret" not in message


def test_so_many_ids_and_no_more() -> None:
    content = "\n".join(f"batch-{n}" for n in range(LISTED_IDS_AT_MOST)).encode()

    assert len(parse_ids(content + b"\nbatch-0\n", WHERE).ids) == LISTED_IDS_AT_MOST
    assert "the list has 100001 batch ids, expected at most 100000" in refused(content + b"\none-more")


def test_a_list_that_is_too_large_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_lists, "LIST_BYTES_AT_MOST", 3)

    assert parse_ids(b"a\nb", WHERE).ids == ("a", "b")
    assert "more than 3 bytes" in refused(b"a\nbc")


def test_the_error_for_a_changed_list_has_both_digests() -> None:
    error = changed("Restatement r: spec.batchIdsFrom", "a" * 64, "b" * 64)

    assert (error.reason, "SHA-256 aaaaaaaaaaaa… then, bbbbbbbbbbbb… now" in error.message) == ("ListChanged", True)
