"""Which version of Lethe this process runs. Reads the files of this package, once."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

VERSION: Final = "0.1.0"


@cache
def version() -> str:
    """The release and a digest of this package's code, such as "0.1.0+3f2a91c0".

    The operator and the runs have this package in common, so two processes with the same version read each other's documents as
    they were meant.
    """
    digest = hashlib.sha256()
    for path, content in sorted(_modules(files("lethe"))):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return f"{VERSION}+{digest.hexdigest()[:8]}"


def _modules(folder: Traversable, path: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _modules(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield path + entry.name, entry.read_bytes()
