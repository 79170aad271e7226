"""Parses a list of batch ids by reference, with one id per line. Pure. The operator and the runs both use it."""

import hashlib
from dataclasses import dataclass
from typing import Final

from lethe.base.errors import InputError
from lethe.base.ids import MAX_BATCH_ID_LENGTH

LISTED_IDS_AT_MOST: Final = 100_000
# Every id has the maximum length, every character four bytes, and every line ends with CR LF.
LIST_BYTES_AT_MOST: Final = LISTED_IDS_AT_MOST * (4 * MAX_BATCH_ID_LENGTH + 2)
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class IdList:
    ids: tuple[str, ...]  # without duplicates, in the order of the list
    sha256: str  # of the bytes, as `sha256sum` prints it


def parse_ids(content: bytes, where: str) -> IdList:
    """Parse a list. Ignores empty lines and duplicates. Only LF or CR LF ends a line, because other line separators may be part
    of an id.

    Args:
        where: The name of the list, for messages. Messages do not quote the content, because it may not be a list of ids.
    Raises: InputError (`InvalidIdList`): not UTF-8, no id, too many ids, or an id that is too long or begins or ends with
        whitespace.
    """
    if len(content) > LIST_BYTES_AT_MOST:
        raise _invalid(where, f"the list has more than {LIST_BYTES_AT_MOST} bytes")
    try:
        text = content.removeprefix(_BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as e:
        raise _invalid(where, f"the list is not UTF-8 at byte {e.start}") from None
    ids: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        batch_id = line.removesuffix("\r")
        if not batch_id:
            continue
        if len(batch_id) > MAX_BATCH_ID_LENGTH:
            raise _invalid(
                where, f"line {number} has {len(batch_id)} characters, expected at most {MAX_BATCH_ID_LENGTH}"
            )
        if batch_id != batch_id.strip():
            raise _invalid(where, f"line {number} begins or ends with a blank")
        ids[batch_id] = None
    if not ids:
        raise _invalid(where, "the list contains no batch id")
    if len(ids) > LISTED_IDS_AT_MOST:
        raise _invalid(where, f"the list has {len(ids)} batch ids, expected at most {LISTED_IDS_AT_MOST}")
    return IdList(tuple(ids), hashlib.sha256(content).hexdigest())


def _invalid(where: str, what: str) -> InputError:
    text = f"{where}: {what}. Write one batch id per line, in UTF-8, and create a new Restatement."
    return InputError("InvalidIdList", text)


def changed(where: str, before: str, found: str) -> InputError:
    """The error for a list that has changed since it was first read.

    Args:
        where: The name of the list.
        before: SHA-256 when it was first read.
        found: SHA-256 now.
    """
    return InputError(
        "ListChanged",
        f"{where}: the list has changed since it was first read (SHA-256 {before[:12]}… then, {found[:12]}… "
        "now), so it is unknown which version is meant. Nothing was changed. Create a new Restatement for "
        "the new list.",
    )
