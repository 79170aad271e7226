#!/usr/bin/env python3
"""runc without CAP_SYS_RESOURCE in any container, for a Docker daemon that lacks it.

Docker asks for every capability for a privileged container, and runc refuses to give what it does not have. dockerd calls this
file in the place of runc, with the same arguments: nested-kind.sh says so with --add-runtime.
"""

import json
import os
import sys
from pathlib import Path

LACKING = "CAP_SYS_RESOURCE"


def restrict(file: Path, process_of: str | None) -> None:
    """Leave the capability out of a container's specification, or of that of a process for a container."""
    document = json.loads(file.read_text())
    process = document[process_of] if process_of else document
    sets = process.get("capabilities") or {}
    process["capabilities"] = {name: [c for c in wanted if c != LACKING] for name, wanted in sets.items()}
    file.write_text(json.dumps(document))


def value_of(arguments: list[str], *options: str) -> str | None:
    """The value of an option: `--bundle x` or `--bundle=x`."""
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in options:
            return value if equals else arguments[number + 1]
    return None


arguments = sys.argv[1:]
if "create" in arguments or "run" in arguments:
    restrict(Path(value_of(arguments, "--bundle", "-b") or ".") / "config.json", "process")
elif "exec" in arguments and (file := value_of(arguments, "--process", "-p")):
    restrict(Path(file), None)
os.execvp("runc", ["runc", *arguments])
