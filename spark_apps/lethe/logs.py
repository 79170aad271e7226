"""How processes write their log: as text, or one JSON object per line that says which Dataset, run and Restatement it is about.

A thread says with `about` what it works on. A process that carries out one run at a time says so with `process_is_about`, because
its other threads do not inherit it.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
JSON: Final = "json"
_INPUT: Final = re.compile(r"input_value=[^\n]*, input_type=")
"""Matches what errors of pydantic repeat of the input, such as the properties of a table."""

_OF_THREAD: ContextVar[Mapping[str, object]] = ContextVar("lethe_log", default=MappingProxyType({}))
_of_process: dict[str, object] = {}


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Add fields to the lines that this thread writes in the block. Fields that are None or empty are left out.

    Args:
        fields: Such as `namespace`, `dataset`, `run`, `attempt`, `restatement`; `restatements` is their number.
    """
    token = _OF_THREAD.set({**_OF_THREAD.get(), **_known(fields)})
    try:
        yield
    finally:
        _OF_THREAD.reset(token)


def process_is_about(**fields: object) -> None:
    """Add fields to the lines of all threads of this process, instead of those of the last call."""
    _of_process.clear()
    _of_process.update(_known(fields))


def _known(fields: Mapping[str, object]) -> dict[str, object]:
    return {k: v for k, v in fields.items() if v not in (None, "", 0)}


class LineFormatter(logging.Formatter):
    """Formats lines as text, or as JSON if `log_format` is JSON."""

    def __init__(self, log_format: str = "") -> None:
        super().__init__(TEXT)
        self._is_json = log_format == JSON

    def clean(self, text: str) -> str:
        """The text without secrets. A subclass knows them."""
        return text

    def _cleaned(self, text: str) -> str:
        return self.clean(_INPUT.sub("input_value=…, input_type=", text))

    def format(self, record: logging.LogRecord) -> str:
        """The record with its texts cleaned. Only JSON has the fields of `about` and `process_is_about`."""
        if not self._is_json:
            return self._cleaned(super().format(record))
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            # Cleaned before it is encoded: JSON writes some characters of a secret in another way.
            "message": self._cleaned(record.getMessage()),
            **_of_process,
            **_OF_THREAD.get(),
        }
        if record.exc_info:
            entry["exception"] = self._cleaned(self.formatException(record.exc_info))
        if record.stack_info:
            entry["stack"] = self._cleaned(self.formatStack(record.stack_info))
        return json.dumps(entry, ensure_ascii=False, default=str)


def to_stderr(level: str, log_format: str) -> None:
    """Let this process log to stderr. `level`: one of Python's logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(log_format))
    logging.basicConfig(level=level, handlers=[handler])
