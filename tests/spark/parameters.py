"""Which parameters of a test run in `make test`. The others run in `make test-all` only."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from lethe.contract.settings import Deletes

# How batches are taken back. Auto takes one of the last two, by the table's format version.
MODES = (Deletes.LEDGER, Deletes.DELETION_VECTORS, Deletes.POSITION_DELETES)


def some(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All the values, of which `make test` takes `quick`."""
    return [v if v in quick else pytest.param(v, marks=pytest.mark.long) for v in values]


def tuples(values: Iterable[tuple[Any, ...]], *quick: tuple[Any, ...]) -> list[Any]:
    """As `some`, where a value is one of each of several parameters."""
    return [pytest.param(*v, marks=() if v in quick else pytest.mark.long) for v in values]


def pairs(ones: Iterable[Any], others: Iterable[Any], *quick: tuple[Any, Any]) -> list[Any]:
    """Each of `ones` with each of `others`, of which `make test` takes the pairs in `quick`."""
    return tuples(product(ones, others), *quick)


def named(cases: Mapping[str, Sequence[Any]], *quick: str) -> list[Any]:
    """The arguments of each case by its name. `make test` takes the cases that `quick` names."""
    return [
        pytest.param(*arguments, id=name, marks=() if name in quick else pytest.mark.long)
        for name, arguments in cases.items()
    ]


def moments(steps: Iterable[str], *quick: tuple[int, str]) -> pytest.MarkDecorator:
    """`story` of each format version with each `step`. `make test` takes the pairs in `quick`."""
    found = [
        pytest.param(v, s, marks=() if (v, s) in quick else pytest.mark.long, id=f"v{v}-{s}")
        for v in (2, 3)
        for s in steps
    ]
    return pytest.mark.parametrize(("story", "step"), found, indirect=["story"])


def _version(quick: int) -> pytest.MarkDecorator:
    values = [pytest.param(v, marks=() if v == quick else pytest.mark.long, id=f"v{v}") for v in (2, 3)]
    return pytest.mark.parametrize("story", values, indirect=True)


# For tests whose promise does not depend on the format version of `story`.
VERSION_2, VERSION_3 = _version(2), _version(3)


def races(
    cases: Mapping[str, Any], steps: Iterable[str], *quick: tuple[str, int, str], fixture: str = "story"
) -> pytest.MarkDecorator:
    """A `case` of each name with each format version of a fixture and each `step`. `make test` takes those in `quick`."""
    found = [
        pytest.param(cases[c], v, s, marks=() if (c, v, s) in quick else pytest.mark.long, id=f"{c}-v{v}-{s}")
        for c, v, s in product(cases, (2, 3), steps)
    ]
    return pytest.mark.parametrize(("case", fixture, "step"), found, indirect=[fixture])
