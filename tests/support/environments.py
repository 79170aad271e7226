"""The Python environments of `dev/venv.sh` that are not the one of the tests."""

import os
from pathlib import Path


def python_of(name: str) -> str:
    """The interpreter of an environment. Raises: AssertionError, if it has not been made."""
    cache = Path(os.environ.get("LETHE_CACHE", Path("~/.cache/lethe").expanduser()))
    python = cache / f"venv-{name}/bin/python"
    assert python.exists(), f"{python} does not exist: run `dev/venv.sh {name}`"
    return str(python)
