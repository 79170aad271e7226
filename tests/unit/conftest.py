"""What a unit test may not use, because another folder is for it: a server, a table, another program, the size of the heap.

docs/tests.md says what each folder is for.
"""

import os
import socket
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from pyiceberg.catalog.sql import SqlCatalog

PROGRAMS = ("bash", "sh", "git", "ps")  # every machine on which Lethe is developed has them, and they start at once


def _refuse(what: str, folder: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail(f"a test of tests/unit uses {what}: move it to {folder}", pytrace=True)

    return refuse


class _OnlyPython(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, args: Any, *others: Any, **named: Any) -> None:
        program = str(args if isinstance(args, str) else args[0])
        # Those of the Python environment, and those that a test has written, are no other programs.
        own = program.startswith((os.path.dirname(sys.executable), tempfile.gettempdir()))
        if not own and os.path.basename(program) not in PROGRAMS:
            _refuse(f"the program {program}", "tests/services")()
        super().__init__(args, *others, **named)


@pytest.fixture(scope="module", autouse=True)
def _needs_nothing_but_python() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "listen", _refuse("a server", "tests/services"))
        patch.setattr(SqlCatalog, "__init__", _refuse("a table", "tests/tables"))
        patch.setattr(tracemalloc, "start", _refuse("tracemalloc", "tests/long"))
        patch.setattr(subprocess, "Popen", _OnlyPython)
        yield
