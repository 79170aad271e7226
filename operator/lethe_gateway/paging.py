"""Cursors: where the next page begins. Pure.

A cursor names a position in an order that does not change, not a number of rows, so rows that are added, changed or removed
neither repeat nor hide others. It carries a check value over the position and over what was asked, so a damaged cursor, and one
of another question, are recognised. It is no secret, and gives no rights: each request checks those of its caller.
"""

import base64
import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from lethe_gateway.problems import Kind, Problem

T = TypeVar("T")
_CHECK_BYTES: Final = 8
_VERSION: Final = b"lethe-cursor-1"
_LIMIT: Final = 2**63
MAX_LENGTH: Final = 4096  # of a cursor, in characters


def encode(position: list[Any], question: Mapping[str, Any]) -> str:
    """Make a cursor.

    Args:
        position: JSON values.
        question: What was asked: the path and the filters, as JSON values.
    """
    # Escapes of characters beyond ASCII would make a cursor with a long batch id longer than a cursor may be.
    content = json.dumps(position, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return base64.urlsafe_b64encode(_check(content, question) + content).decode().rstrip("=")


def decode(cursor: str, question: Mapping[str, Any], *kinds: type) -> list[Any]:
    """The position. Anybody can make a cursor with the right check value, so its content is not trusted either.

    Args:
        kinds: What each value of the position is: `str`, or `int` of 64 bits.

    Raises:
        Problem: `invalid-cursor`.
    """
    try:
        if len(cursor) > MAX_LENGTH:
            raise ValueError
        raw = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        check, content = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        if check != _check(content, question):
            raise ValueError
        position = json.loads(content)
        if not isinstance(position, list) or len(position) != len(kinds) or not all(map(_is, position, kinds)):
            raise ValueError
    except (ValueError, RecursionError):
        raise Problem(
            Kind.INVALID_CURSOR,
            "The cursor is damaged, or was made for another path or other filters. Use the `nextCursor` of an answer to the same "
            "question, or leave the cursor out to begin with the first page.",
        ) from None
    return position


def part_of(
    items: Sequence[T], name_of: Callable[[T], str], limit: int, cursor: str, question: Mapping[str, Any]
) -> tuple[list[T], str | None]:
    """A page of a list that is known as a whole, and the cursor of the next one; None: it is the last one.

    Args:
        name_of: Returns what no two items share.

    Raises:
        Problem: `invalid-cursor`; `cursor-expired`, if the last item of the page before is gone.
    """
    start = 0
    if cursor:
        (last,) = decode(cursor, question, str)
        names = [name_of(item) for item in items]
        if last not in names:
            raise Problem(
                Kind.CURSOR_EXPIRED, "The list has changed. Leave the cursor out to begin with the first page."
            )
        start = names.index(last) + 1
    shown = list(items[start : start + limit])
    return shown, encode([name_of(shown[-1])], question) if start + limit < len(items) else None


def part_in_order(
    items: Sequence[T], key_of: Callable[[T], str], limit: int, cursor: str, question: Mapping[str, Any]
) -> tuple[list[T], str | None]:
    """The same of a list in the order of keys, which no two items share: the page before may have changed.

    Raises:
        Problem: `invalid-cursor`.
    """
    start = bisect_right(items, decode(cursor, question, str)[0], key=key_of) if cursor else 0
    shown = list(items[start : start + limit])
    return shown, encode([key_of(shown[-1])], question) if start + limit < len(items) else None


def _is(value: Any, kind: type) -> bool:
    if type(value) is not kind:
        return False
    if isinstance(value, str):
        value.encode()  # a lone surrogate is a ValueError
        return True
    return isinstance(value, int) and -_LIMIT <= value < _LIMIT


def _check(content: bytes, question: Mapping[str, Any]) -> bytes:
    asked = json.dumps(question, sort_keys=True, separators=(",", ":"), default=str).encode()
    return hashlib.blake2b(asked + b"\0" + content, digest_size=_CHECK_BYTES, key=_VERSION).digest()
