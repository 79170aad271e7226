"""Sets up the log of a process, and keeps secrets of catalogs out of it.

Keep the memory of a run off the disk: it holds values of rows, also erased ones. I/O: a limit of this process.
"""

import contextlib
import logging
import os
import resource
import sys
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

from lethe.logs import LineFormatter

_TELLING = ("secret", "password", "token", "credential", "access-key", "key-id")


def secrets_of(properties: Mapping[str, str]) -> frozenset[str]:
    """The secret values of catalog properties; and the passwords in URIs, with and without URL encoding."""
    secrets = {v for k, v in properties.items() if any(word in k.lower() for word in _TELLING)}
    for value in properties.values():
        try:
            password = urlsplit(value).password
        except ValueError:
            continue
        if password:
            secrets |= {password, unquote(password), quote(unquote(password), safe="")}
    return frozenset(s for s in secrets if len(s) > 3)  # replacing "a" would make the log unreadable


class RedactingFormatter(LineFormatter):
    """Writes *** instead of each secret, also in stack traces."""

    secrets: frozenset[str] = frozenset()

    def clean(self, text: str) -> str:
        """Replace each of `secrets` by ***, the longest first, because a secret may be part of another one."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def log_to_stderr() -> RedactingFormatter:
    """Log to stderr in the format of LETHE_LOG_FORMAT, for Lethe's modules from level INFO.

    Returns:
        The formatter; the caller sets its `secrets`.
    """
    formatter = RedactingFormatter(os.environ.get("LETHE_LOG_FORMAT", ""))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("lethe_spark").setLevel(logging.INFO)
    logging.getLogger("lethe").setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    return formatter


def forbid_core_dumps() -> None:
    """Let this process and all that it starts write no core dump. A process may always lower its own limit."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
