"""Values that a test plants in tables, and the places where they are found again, whatever the encoding. I/O: reads."""

import base64
import gzip
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from fastavro.schema import SchemaParseException

from tests.support.file_contents import decoded

SHORTEST = 8


@dataclass(frozen=True)
class Planted:
    """Values that occur nowhere else: texts, and numbers of eight bytes."""

    values: tuple[str | int, ...]

    @cached_property
    def forms(self) -> frozenset[bytes]:
        """The bytes by which a value is found: as text, as a number in both byte orders, in base64, in hexadecimal."""
        found: set[bytes] = set()
        for value in self.values:
            text = str(value).encode()
            found |= {text, text.hex().encode()}
            if isinstance(value, int):
                found |= {value.to_bytes(8, "little"), value.to_bytes(8, "big")}
            for shift in range(3):  # base64 of a longer text contains one of three forms of its middle
                found.add(base64.b64encode(b"\0" * shift + text)[4 if shift else 0 : -4])
        assert min(map(len, found)) >= SHORTEST, "a shorter form occurs by chance"
        return frozenset(found)

    def are_in(self, content: bytes) -> bool:
        """Whether bytes contain a value in one of its forms."""
        return any(form in content for form in self.forms)

    def in_files(self, files: Iterable[Path]) -> list[str]:
        """The files whose path, bytes or decoded content have a value. One that vanishes meanwhile has none."""
        found = []
        for path in files:
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            if self.are_in(str(path).encode()) or any(map(self.are_in, _contents(path, content))):
                found.append(str(path))
        return found

    def in_objects(self, kind: str, objects: Iterable[Any]) -> list[str]:
        """The resources that have a value in any field, also as base64, as `kind/name`."""
        return [f"{kind}/{o['metadata']['name']}" for o in objects if self.are_in(json.dumps(o).encode())]


def _contents(path: Path, content: bytes) -> Iterator[bytes]:
    """The bytes of a file, and what they say after decoding: pages, blocks, compressed text, the rows of a database."""
    yield content
    if content.startswith(b"\x1f\x8b"):
        yield gzip.decompress(content)
    elif content.startswith(b"SQLite format 3"):
        yield _dumped(path)
    else:
        try:
            yield decoded(path.name, content)
        except (pa.ArrowException, SchemaParseException, EOFError, ValueError):
            assert content[:4] not in (b"PAR1", b"Obj\x01") or not path.exists(), f"{path} cannot be decoded"


def _dumped(path: Path) -> bytes:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        return "\n".join(database.iterdump()).encode()
