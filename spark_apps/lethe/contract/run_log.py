"""The part of a warm driver's log that is about one run. Pure.

The warm driver writes a line at the beginning of each run. It carries out one run at a time, so the lines up to the next
beginning are of this run.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Final

# Before the name of the attempt, at the end of the line.
BEGINNING: Final = "The run begins: "


def lines_of_run(lines: Iterable[str], attempt_name: str) -> Iterator[str]:
    """The lines of a run, by the name of its attempt."""
    is_of_run = False
    for line in lines:
        _, beginning, name = _message(line).rpartition(BEGINNING)
        if beginning:
            is_of_run = name.strip() == attempt_name
        if is_of_run:
            yield line


def _message(line: str) -> str:
    """The message of a line in JSON, or the line."""
    if not line.startswith("{") or BEGINNING not in line:
        return line
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, TypeError):
        return line
