"""Patterns of names in charts and boundaries: * matches any characters; all other characters match themselves. Pure."""

import re
from collections.abc import Iterable
from functools import lru_cache


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the whole name; case-sensitive."""
    return _compiled(pattern).fullmatch(name) is not None


def matches_any(patterns: Iterable[str], name: str) -> bool:
    return any(matches(p, name) for p in patterns)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
