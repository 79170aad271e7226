"""Blocks that wait in memory and on disk."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.writing import tasks as spool_module
from lethe.writing.tasks import BlockKey, Cell, Spool


def key(bucket: int, number: int = 0) -> BlockKey:
    return BlockKey(Cell(bucket, 0), 0, number)


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 200))
def test_blocks_come_back_in_order(contents: list[bytes], in_memory: int) -> None:
    with Spool(in_memory) as spool:
        for number, content in reversed([*enumerate(contents)]):
            spool.add(key(number % 3, number), content)

        found = {k: spool.take(k) for k in spool.in_order()}

    assert list(found) == sorted(found)
    assert {k.number: content for k, content in found.items()} == dict(enumerate(contents))


def test_nobody_can_read_what_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has no name, so the test looks at it through the process's open files."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    opened: list[Any] = []
    original = tempfile.TemporaryFile
    monkeypatch.setattr(
        spool_module.tempfile, "TemporaryFile", lambda **how: opened.append(original(**how)) or opened[0]
    )
    secret = b"the record of a person" * 100
    with Spool(in_memory=0) as spool:
        spool.add(key(1), secret)
        opened[0].flush()
        on_disk = Path(f"/proc/self/fd/{opened[0].fileno()}")

        assert os.readlink(on_disk).startswith(str(tmp_path))
        assert b"person" not in on_disk.read_bytes()
        assert list(tmp_path.iterdir()) == []
        assert spool.take(key(1)) == secret
    assert opened[0].closed
