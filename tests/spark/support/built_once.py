"""Set-ups that are built once per process. Later tests get the same table again, restored from a copy of its files.

A consolidation takes about a second of Spark, and hundreds of tests begin with the same one. The restored table has the same
name, location, snapshots and ledger, so nothing in its files has to be rewritten.
"""

import contextlib
import functools
import inspect
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
from lethe.iceberg import catalogs
from pyiceberg.exceptions import NoSuchTableError

from tests.spark.support.story import Story, local
from tests.support.lake import CATALOG

P = ParamSpec("P")
S = TypeVar("S", bound=Story)


@dataclass
class _Template:
    """A set-up, and a copy of its files."""

    story: Story
    # The metadata file of the table after the set-up.
    metadata: str
    # Each folder of the set-up, with its copy. A folder that did not exist has none.
    copies: dict[Path, Path | None]
    # The test that got the set-up last.
    test: str

    @classmethod
    def of(cls, story: Story, number: int) -> "_Template":
        table = story.table()
        home = story.lake.home
        folders = [Path(local(table.location())), story.buffer.path]
        # Replacements, and the folders that the table had before others.
        folders += [home / kind / story.name for kind in ("restated", "before")]
        copies: dict[Path, Path | None] = {}
        for n, folder in enumerate(folders):
            copies[folder] = home / "templates" / str(number) / str(n) if folder.exists() else None
            if (copy := copies[folder]) is not None:
                shutil.copytree(folder, copy)
        return cls(story, table.metadata_location, copies, _test())

    def restore(self) -> None:
        """Put the files and the catalog's pointer back."""
        for folder, copy in self.copies.items():
            shutil.rmtree(folder, ignore_errors=True)
            if copy is not None:
                shutil.copytree(copy, folder)
        catalog = catalogs.load(self.story.catalog)
        with contextlib.suppress(NoSuchTableError):  # the test dropped or renamed it
            catalog.drop_table(self.story.name)
        catalog.register_table(self.story.name, self.metadata)
        self.test = _test()


_TEMPLATES: dict[Any, list[_Template]] = {}


def built_once(build: Callable[P, S]) -> Callable[P, S]:
    """Call a set-up once per process and arguments; afterwards restore what it built.

    The set-up depends on nothing but its arguments, and those of its fixture's parameter. A test that asks twice gets two tables.
    For function-scoped fixtures and functions that tests call. Tables of other catalogs than `lite` are built each time.
    """

    @functools.wraps(build)
    def restored(*args: P.args, **kwargs: P.kwargs) -> S:
        bound = inspect.signature(build).bind(*args, **kwargs)
        bound.apply_defaults()
        key = (build.__module__, build.__qualname__, *(_key(v) for v in bound.arguments.values()))
        templates = _TEMPLATES.setdefault(key, [])
        for template in templates:
            if template.test != _test():
                template.restore()
                return template.story  # type: ignore[return-value]
        story = build(*args, **kwargs)
        if story.catalog == CATALOG:
            templates.append(_Template.of(story, sum(map(len, _TEMPLATES.values()))))
        return story

    return restored


def _test() -> str:
    """The running test, without its phase."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]


def _key(argument: Any) -> Any:
    """What of an argument the set-up may depend on. Fixtures of the session are the same for all tests of a process."""
    if isinstance(argument, pytest.FixtureRequest):
        return getattr(argument, "param", None)
    if isinstance(argument, dict):
        return tuple(sorted(argument.items()))
    return argument if isinstance(argument, str | int | tuple | None) else type(argument).__name__
