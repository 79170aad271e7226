"""Keeping the catalog's secrets out of the log. Pure but for being a logging formatter."""

import logging
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

_TELLING = ("secret", "password", "token", "credential", "access-key", "key-id")


def secrets_of(properties: Mapping[str, str]) -> frozenset[str]:
    """The values among catalog properties that nobody may read, and the password of each URI, in both spellings."""
    found = {v for k, v in properties.items() if any(word in k.lower() for word in _TELLING)}
    for value in properties.values():
        try:
            password = urlsplit(value).password
        except ValueError:
            continue
        if password:
            found |= {password, unquote(password), quote(unquote(password), safe="")}
    return frozenset(s for s in found if len(s) > 3)  # blotting out "a" would blot out everything


class RedactingFormatter(logging.Formatter):
    """Writes *** for each of `secrets`, stack traces included."""

    secrets: frozenset[str] = frozenset()

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text
