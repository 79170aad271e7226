"""Which parameters of a test run in `make test`. The others run in `make test-all` only."""

from collections.abc import Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All the values, of which `make test` takes `quick`."""
    return [v if v in quick else pytest.param(v, marks=pytest.mark.long) for v in values]


def tuples(values: Iterable[tuple[Any, ...]], *quick: tuple[Any, ...]) -> list[Any]:
    """As `some`, where a value is one of each of several parameters."""
    return [pytest.param(*v, marks=() if v in quick else pytest.mark.long) for v in values]


def moments(steps: Iterable[str], *quick: tuple[int, str]) -> pytest.MarkDecorator:
    """`story` of each format version with each `step`. `make test` takes the pairs in `quick`."""
    pairs = [
        pytest.param(v, s, marks=() if (v, s) in quick else pytest.mark.long, id=f"v{v}-{s}")
        for v in (2, 3)
        for s in steps
    ]
    return pytest.mark.parametrize(("story", "step"), pairs, indirect=["story"])


def _version(quick: int) -> pytest.MarkDecorator:
    values = [pytest.param(v, marks=() if v == quick else pytest.mark.long, id=f"v{v}") for v in (2, 3)]
    return pytest.mark.parametrize("story", values, indirect=True)


# For tests whose promise does not depend on the format version of `story`.
VERSION_2, VERSION_3 = _version(2), _version(3)
