"""Patterns of names, as charts and boundaries have them: * stands for any characters, and nothing else has a meaning. Pure."""

import re
from collections.abc import Iterable
from functools import lru_cache


def matches(pattern: str, name: str) -> bool:
    """Whether the whole name is of the pattern; upper and lower case differ."""
    return _compiled(pattern).fullmatch(name) is not None


def matches_any(patterns: Iterable[str], name: str) -> bool:
    return any(matches(p, name) for p in patterns)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
