"""The reference of a delivery: the id of the run of another program that wrote a batch, as the batch's `_SUCCESS` names it. Pure.

A DAG run, a load of dlt or an agent puts its id there, so that everything it delivered can be found and taken back.
"""

import json
from typing import Final

from lethe.base.errors import InputError

LENGTH_AT_MOST: Final = 256
"""The most characters of a reference."""
MARKER_BYTES_AT_MOST: Final = 64 * 1024
"""The content of a larger `_SUCCESS` is not read: committers of Hadoop store their own reports there."""
INVALID_REFERENCE: Final = "InvalidReference"
"""The reason of a refusal."""
_FIELD: Final = "reference"


def require_reference(reference: str, where: str) -> str:
    """The reference, if it is one.

    Args:
        where: What names it, for the message, which does not contain the reference.

    Raises:
        InputError: `InvalidReference`.
    """
    if problem := _problem(reference):
        raise InputError(
            INVALID_REFERENCE,
            f"{where}: {problem}. Expected 1 to {LENGTH_AT_MOST} characters, without control characters and without blanks at "
            "its ends.",
        )
    return reference


def _problem(reference: object) -> str:
    if not isinstance(reference, str):
        return "the reference is not a string"
    if not reference or len(reference) > LENGTH_AT_MOST:
        return f"the reference has {len(reference)} characters"
    if reference != reference.strip():
        return "the reference begins or ends with a blank"
    if any(c < " " or c == "\x7f" for c in reference):
        return "the reference has a control character"
    if any("\ud800" <= c <= "\udfff" for c in reference):  # JSON can escape one, and no ledger can store it
        return "the reference has half of a surrogate pair"
    return ""


def marker_of(reference: str) -> bytes:
    """The content of `_SUCCESS`. Empty if there is no reference."""
    return json.dumps({_FIELD: reference}).encode() if reference else b""


def reference_of(content: bytes) -> str | None:
    """The reference in the content of a `_SUCCESS`.

    Other programs write their own content there. What is not a JSON object with the field `reference` names none.

    Returns:
        None: it names none.

    Raises:
        InputError: `InvalidReference`.
    """
    if not content or len(content) > MARKER_BYTES_AT_MOST:
        return None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get(_FIELD) is None:
        return None
    return require_reference(document[_FIELD], "_SUCCESS")
