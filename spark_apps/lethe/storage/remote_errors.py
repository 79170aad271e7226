"""What obstore and its credential providers raise, as errors of Lethe. Pure.

obstore's errors may contain signed URLs and answers of servers, so their text never leaves this module.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from obstore.exceptions import BaseError, InvalidPathError, PermissionDeniedError, UnauthenticatedError

from lethe.base.errors import InputError
from lethe.storage.object_store import DENIED, StoreError
from lethe.uri import bucket_and_key

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class UnsupportedName(InputError):
    """A key that obstore's paths exclude."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            "UnsupportedName",
            f"{uri}: an object's name has an empty segment, a segment `.` or `..`, or a control character. Rename or delete it.",
        )


def is_nameable(uri: str) -> bool:
    """Whether obstore can express the key of a URI."""
    _, key = bucket_and_key(uri)
    parts = key.split("/")
    return not (any(p in ("", ".", "..") for p in parts) or _CONTROL.search(key))


@contextmanager
def store_errors(uri: str, missing: str = "") -> Iterator[None]:
    """Turn errors of obstore, its credential providers and boto3 into StoreErrors, without their text.

    Args:
        missing: The code for a 404 response; "": FileNotFoundError is not converted.
    """
    try:
        yield
    except FileNotFoundError as e:
        if not missing:
            raise
        raise StoreError(uri, code_of(e, missing)) from None
    except InvalidPathError:
        raise UnsupportedName(uri) from None
    except BaseError as e:
        raise StoreError(uri, code_of(e, missing)) from None
    except ValueError as e:
        if "path" not in str(e).lower():
            raise
        raise UnsupportedName(uri) from None


def code_of(error: Exception, missing: str = "") -> str:
    text, status = str(error), status_of(error)
    if isinstance(error, PermissionDeniedError):
        return DENIED
    if isinstance(error, UnauthenticatedError) and not status:
        return "nothing (no credentials were found)"
    if status in (401, 403):
        return DENIED
    if isinstance(error, FileNotFoundError) or status == 404:
        return missing or "404"
    found = _CODE.search(text)
    if found:
        return found[1]
    if status:
        return str(status)
    return "nothing (no connection, or no answer in time)"


def status_of(error: Exception) -> int:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0
