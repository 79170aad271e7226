"""Reads the YAML files that a command applies. I/O: files, standard input."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from lethe.base.errors import InputError

STDIN: Final = Path("-")
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """As Kubernetes reads YAML: what looks like a time is a string."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def documents(paths: tuple[Path, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The documents of files, and of the .yaml, .yml and .json files of folders, with where each one is.

    Args:
        paths: "-" is standard input.
    Raises: InputError (`UnreadableFile`); the message names the file and the line.
    """
    for where, document in parsed(paths):
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
            raise InputError("UnreadableFile", f"{where}: expected an object with apiVersion, kind and metadata.")
        yield where, document


def parsed(paths: tuple[Path, ...]) -> Iterator[tuple[str, Any]]:
    """The same documents, whatever they are. Raises: InputError (`UnreadableFile`)."""
    for path in paths:
        files = (
            sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml", ".json")) if path.is_dir() else [path]
        )
        if not files:
            raise InputError("UnreadableFile", f"{path}: this folder has no .yaml, .yml or .json file.")
        for file in files:
            yield from _parsed(file)


def _parsed(file: Path) -> Iterator[tuple[str, Any]]:
    name = "standard input" if file == STDIN else str(file)
    try:
        text = sys.stdin.read() if file == STDIN else file.read_text()
        found = [d for d in yaml.load_all(text, _Loader) if d is not None]
    except OSError as e:
        raise InputError("UnreadableFile", f"{name}: {e.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise InputError("UnreadableFile", f"{name}: this is not YAML: {' '.join(str(e).split())}") from None
    for number, document in enumerate(found):
        yield (name if len(found) == 1 else f"{name}, document {number + 1}"), document
