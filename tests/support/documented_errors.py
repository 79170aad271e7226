"""Each error that a test provokes through the Python API is documented by the function that the test called.

`pytest.raises` is where a test provokes an error. The traceback shows the public function that was called; its section
`Raises:` must name the error's class or a base class of it; for an InputError also the reason.
"""

import gc
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, TracebackType
from typing import Any

from _pytest.raises import RaisesExc

_PAGE = Path(__file__).resolve().parents[2] / "docs/api.md"
_WORD = re.compile(r"\w+")
_LAST_SECTION = re.compile(r"\n\w+:\n")


@cache
def public_names() -> frozenset[tuple[str, str]]:
    """The module and the name of each function and class on the page of the API."""
    paths = re.findall(r"^::: ([\w.]+)$", _PAGE.read_text(), re.MULTILINE)
    return frozenset((module, name) for module, _, name in (path.rpartition(".") for path in paths))


def undocumented(error: BaseException, traceback: TracebackType | None) -> str:
    """What the docstring of the called public function lacks; empty: nothing, or no public function was called."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    functions = list(_called(traceback))
    if "LetheError" not in kinds or not functions:
        return ""
    first, *inner = functions
    described = _raises(first) + "".join(_raises(f) for f in inner if f"As `{f.__name__}`" in _raises(first))
    reason = getattr(error, "reason", "")
    # A caller looks at the class, and at the reason only if it has to change something.
    by_reason = kinds[0] == "InputError"
    if any(f"{kind}:" in described for kind in kinds) and (not by_reason or reason in _WORD.findall(described)):
        return ""
    return f"{first.__module__}.{first.__qualname__} does not document {kinds[0]}, reason {reason}"


def check_provoked_errors() -> None:
    """Let `pytest.raises` fail a test whose error is not documented."""
    leave = RaisesExc.__exit__

    def checked(self: Any, kind: Any, error: Any, traceback: TracebackType | None) -> bool:
        matched = leave(self, kind, error, traceback)
        missing = undocumented(error, traceback) if matched else ""
        if missing:
            raise AssertionError(missing) from None
        return matched

    RaisesExc.__exit__ = checked  # type: ignore[method-assign]


def _called(traceback: TracebackType | None) -> Iterator[FunctionType]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        owner, _, method = code.co_qualname.rpartition(".")
        module = traceback.tb_frame.f_globals.get("__name__", "")
        if (module, owner or method) in public_names() and (not method.startswith("_") or method == "__init__"):
            yield _function_of(code)
        traceback = traceback.tb_next


@cache  # the search goes through all objects of the process
def _function_of(code: CodeType) -> FunctionType:
    return next(user for user in gc.get_referrers(code) if isinstance(user, FunctionType))


def _raises(function: FunctionType) -> str:
    _, _, rest = (inspect.getdoc(function) or "").partition("Raises:\n")
    return _LAST_SECTION.split(rest)[0]
