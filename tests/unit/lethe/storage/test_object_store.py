"""A file is created by one of many, whole or not at all."""

import os
import threading
from pathlib import Path

import pytest
from lethe.base.errors import InputError
from lethe.storage.object_store import open_folder

ROUNDS, WRITERS = 150, 3


def test_of_many_that_create_one_file_at_once_one_does(tmp_path: Path) -> None:
    """And a reader never sees a part of it."""
    folder = open_folder(f"file://{tmp_path}/metadata", {})
    start, made = threading.Barrier(WRITERS), [list[bool]() for _ in range(ROUNDS)]
    whole: list[bool] = []
    contents = [str(w).encode() * 10_000 for w in range(WRITERS)]

    def create(writer: int) -> None:
        for n in range(ROUNDS):
            start.wait(10)
            won = folder.create(f"v{n}.metadata.json", contents[writer])
            seen = folder.read(f"v{n}.metadata.json")
            whole.append(seen == contents[writer] if won else seen in contents)
            made[n].append(won)

    writers = [threading.Thread(target=create, args=(w,)) for w in range(WRITERS)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(60)

    assert [sorted(m) for m in made] == [[False] * (WRITERS - 1) + [True]] * ROUNDS
    assert all(whole)
    assert len(os.listdir(tmp_path / "metadata")) == ROUNDS


def test_a_file_system_without_hard_links_is_refused_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)

    with pytest.raises(InputError, match=r"no hard links \(EPERM\)") as refused:
        open_folder(f"file://{tmp_path}", {}).create("v1.metadata.json", b"1")

    assert (refused.value.reason, os.listdir(tmp_path)) == ("UnsupportedStorage", [])


def test_other_storage_is_refused_by_its_scheme() -> None:
    with pytest.raises(InputError, match="found hdfs://") as refused:
        open_folder("hdfs://name/lake", {})

    assert refused.value.reason == "UnsupportedStorage"
