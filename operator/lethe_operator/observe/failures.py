"""Messages about errors of catalogs and stores, without secrets. Pure.

The message of a library may contain a URI with a password or a key. Everything that looks like a secret is removed.
"""

import re
from collections.abc import Mapping
from typing import Final

from lethe.base.errors import InputError, LetheError

from lethe_operator.observe.time_limit import TookTooLong
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import Unavailable

_CATALOG_MODULES: Final = ("sqlalchemy", "psycopg2", "sqlite3", "pyiceberg.catalog", "pyiceberg.exceptions", "requests")
_USER_INFO: Final = re.compile(r"://[^/\s@]*@")
_SECRET_KEY: Final = re.compile(r"secret|password|token|credential|access-key|\.key$", re.IGNORECASE)
MESSAGE_AT_MOST: Final = 300


def unavailable(error: BaseException, what: str, properties: Mapping[str, str], storage: bool) -> Unavailable:
    """What could not be observed, and why.

    Args:
        what: The subject of the message.
        properties: Of the catalog; the message must not contain their secrets.
        storage: True: a store failed; False: a catalog failed, possibly while it read from a store.
    """
    if isinstance(error, InputError):
        return Unavailable(error.reason, scrubbed(error.message, properties), transient=False)
    if isinstance(error, LetheError):
        return Unavailable(error.reason, scrubbed(error.message, properties))
    module = f"{type(error).__module__}."
    of_catalog = not storage and (
        isinstance(error, TookTooLong) or module.startswith(tuple(f"{m}." for m in _CATALOG_MODULES))
    )
    of_catalog = of_catalog and not (isinstance(error, OSError) and not module.startswith("requests."))
    reason = Reason.CATALOG_UNAVAILABLE if of_catalog else Reason.STORAGE_UNAVAILABLE
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    text = scrubbed(first_line, properties)[:MESSAGE_AT_MOST]
    return Unavailable(reason, f"{what}: {type(error).__name__}: {text}. The operator retries.")


def scrubbed(text: str, properties: Mapping[str, str]) -> str:
    """The text without the user names and passwords of URIs, and without the values of properties that look like secrets."""
    for key, value in properties.items():
        if len(value) >= 4 and _SECRET_KEY.search(key):
            text = text.replace(value, "***")
    return _USER_INFO.sub("://***@", text)
