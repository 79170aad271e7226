"""Start `readers`, or the program in dev/iceberg-go, in a process of its own. I/O only."""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.engines.readers import PROPERTIES
from tests.support.environments import python_of

ROOT = Path(__file__).parents[3]
ICEBERG_GO = "iceberg-go"
SECONDS_AT_MOST = 600


def read_with(
    engine: str,
    tables: Iterable[tuple[str, int | None]],
    *,
    key: str = "v",
    home: Path = ROOT,
    properties: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the process prints.

    Args:
        tables: The metadata file of each, and the snapshot to read; None: the head.
        key: The column to read beside that of batch ids.
        home: The working directory. ClickHouse reads only files below it.
        properties: Of PyIceberg's FileIO.
    """
    wanted = [argument for metadata, at in tables for argument in (metadata, str(at or 0))]
    command = [python_of("engines"), "-m", "tests.support.engines.readers", engine, key, *wanted]
    if engine == ICEBERG_GO:
        command = ["icebergreader", *wanted]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), PROPERTIES: json.dumps(dict(properties or {}))}
    return last_line_of(command, cwd=home, env=environment)


def last_line_of(command: list[str], **options: Any) -> dict[str, Any]:
    """The JSON document in the last line that a process prints. Raises: AssertionError, if the process fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_AT_MOST, **options)
    assert done.returncode == 0, f"{command[:4]}: {done.stderr[-3000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
