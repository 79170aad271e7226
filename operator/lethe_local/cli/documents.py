"""Reads the YAML files that a command applies. I/O: files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from lethe.base.errors import InputError


def documents(paths: tuple[Path, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The documents of files, and of the .yaml, .yml and .json files of folders, with where each one is.

    Raises: InputError (`UnreadableFile`); the message names the file and the line.
    """
    for path in paths:
        files = (
            sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml", ".json")) if path.is_dir() else [path]
        )
        if not files:
            raise InputError("UnreadableFile", f"{path}: this folder has no .yaml, .yml or .json file.")
        for file in files:
            yield from _documents(file)


def _documents(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = file.read_text()
        found = [d for d in yaml.safe_load_all(text) if d is not None]
    except OSError as e:
        raise InputError("UnreadableFile", f"{file}: {e.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise InputError("UnreadableFile", f"{file}: this is not YAML: {' '.join(str(e).split())}") from None
    for number, document in enumerate(found):
        where = str(file) if len(found) == 1 else f"{file}, document {number + 1}"
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
            raise InputError("UnreadableFile", f"{where}: expected an object with apiVersion, kind and metadata.")
        yield where, document
