"""A long list of batch ids that comes by reference: one id per line. Pure; the operator and the runs read lists alike."""

import hashlib
from dataclasses import dataclass
from typing import Final

from lethe.base.errors import InputError
from lethe.base.ids import MAX_BATCH_ID_LENGTH

LISTED_IDS_AT_MOST: Final = 100_000
# Each id of the longest, of characters of four bytes.
LIST_BYTES_AT_MOST: Final = LISTED_IDS_AT_MOST * (4 * MAX_BATCH_ID_LENGTH + 2)
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class IdList:
    """`ids`: each once, in the order of the list; `sha256`: of its bytes, as `sha256sum` prints it."""

    ids: tuple[str, ...]
    sha256: str


def parse_ids(content: bytes, where: str) -> IdList:
    """Read a list. Empty lines do not count, nor does an id that comes again. A line ends with LF or CR LF, and with nothing
    else: other characters that end lines somewhere may be part of an id.

    Args:
        where: The list as messages name it. What it holds is not quoted: it may be no list at all.
    Raises: InputError (`InvalidIdList`): no UTF-8, no id, too many of them, one that is too long or begins or ends with a blank.
    """
    if len(content) > LIST_BYTES_AT_MOST:
        raise _invalid(where, f"it has more than {LIST_BYTES_AT_MOST} bytes")
    try:
        text = content.removeprefix(_BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as e:
        raise _invalid(where, f"it is not UTF-8 at byte {e.start}") from None
    ids: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        batch_id = line.removesuffix("\r")
        if not batch_id:
            continue
        if len(batch_id) > MAX_BATCH_ID_LENGTH:
            raise _invalid(
                where, f"line {number} has {len(batch_id)} characters, an id has at most {MAX_BATCH_ID_LENGTH}"
            )
        if batch_id != batch_id.strip():
            raise _invalid(where, f"line {number} begins or ends with a blank")
        ids[batch_id] = None
    if not ids:
        raise _invalid(where, "there is no id in it")
    if len(ids) > LISTED_IDS_AT_MOST:
        raise _invalid(where, f"it has {len(ids)} ids, at most {LISTED_IDS_AT_MOST} can be restated at once")
    return IdList(tuple(ids), hashlib.sha256(content).hexdigest())


def _invalid(where: str, what: str) -> InputError:
    text = f"{where}: {what}. Write one batch id per line, in UTF-8, and create a new Restatement."
    return InputError("InvalidIdList", text)


def changed(where: str, told: str, found: str) -> InputError:
    """What is said of a list that is another one than when it was first looked at."""
    return InputError(
        "ListChanged",
        f"{where}: the list has changed since it was first looked at (SHA-256 {found[:12]}…, then {told[:12]}…), and nobody can "
        "tell which one is meant. Nothing was changed. Create a new Restatement for the new list.",
    )
