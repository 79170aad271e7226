"""Buffered files that are too large to be fetched whole, read as a worker of Spark reads them."""

import threading
from pathlib import Path
from typing import Any

import pytest
from lethe.ingest import buffer_store
from lethe.ingest.buffer_store import BufferAway, BufferedFiles, Bytes, FileTask, Unread
from lethe.storage.local_store import LocalReader

from tests.support.buffer_formats import read_tasks
from tests.support.lake import BufferFolder


def read_by_pieces(file: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """As a worker reads a file that is too large to be fetched whole: its rows, and the reasons to refuse it."""
    monkeypatch.setattr(buffer_store, "WHOLE_FILE_BYTES", 0)
    task = FileTask("A", f"file://{file}", file.stat().st_size)
    found, refused = read_tasks([task])
    return len(found), [reason for reason, _ in refused]


def test_a_large_file_is_read_by_pieces_and_damage_in_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = BufferFolder(tmp_path).put("A", [{"v": n * 7919, "day": n % 31} for n in range(200_000)]) / "part-0.parquet"

    assert read_by_pieces(file, monkeypatch) == (200_000, [])

    content = bytearray(file.read_bytes())
    content[200:4000] = b"\xff" * 3800
    file.write_bytes(content)
    assert read_by_pieces(file, monkeypatch) == (0, ["UnreadableFile"])


def test_a_store_that_fails_within_a_large_file_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyArrow reports both as OSError."""
    file = BufferFolder(tmp_path).put("A", [{"v": n * 7919, "day": n % 31} for n in range(200_000)]) / "part-0.parquet"

    def reset(_: LocalReader, _buffer: Any) -> int:
        raise OSError("connection reset")

    monkeypatch.setattr(LocalReader, "readinto", reset)
    with pytest.raises(BufferAway, match="connection reset"):
        read_by_pieces(file, monkeypatch)


@pytest.mark.parametrize(
    ("size", "most"), [(1, buffer_store.FILES_AHEAD), (buffer_store.BYTES_AHEAD // 4, 4), (1 << 40, 1)]
)
def test_remote_files_are_fetched_ahead_in_their_order_within_limits(
    size: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All fetches that may begin have begun before the first one ends."""
    begun: list[str] = []
    gate = threading.Event()

    def fetch(_: BufferedFiles, task: FileTask) -> Bytes | Unread:
        begun.append(task.uri)
        if len(begun) == most:
            gate.set()
        assert gate.wait(20)
        return Unread("reason", task.uri)

    monkeypatch.setattr(BufferedFiles, "open", fetch)
    tasks = [FileTask("A", f"s3://lake/{n}", size) for n in range(100)]
    files = BufferedFiles({}).opened(tasks)

    first, _ = next(files)

    assert first == tasks[0]
    assert len(begun) == most
    assert [task for task, _ in files] == tasks[1:]
