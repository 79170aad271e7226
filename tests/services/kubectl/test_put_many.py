"""`lethe put` of many batches on a real table and real folders."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.objects import BufferedObject
from lethe.storage.local_store import LocalStore

from tests.services.kubectl.conftest import LocalApi
from tests.support.buffers import batches_in
from tests.support.builders import a_batch
from tests.tables.lethe.cli.conftest import Kept

_DIES = """
import os, signal, sys
from lethe.cli.main import main
from lethe.storage.local_store import LocalStore

real, left = LocalStore.put_if_absent, int(sys.argv[1])

def put_if_absent(self, *arguments):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, *arguments)

LocalStore.put_if_absent = put_if_absent
main(sys.argv[2:])
"""
"""The command in a process that is killed before it writes a certain object."""


def a_root(tmp_path: Path, count: int) -> Path:
    """A folder of folders, each a batch of one file with one row."""
    root = tmp_path / "loads"
    for n in range(count):
        folder = root / f"load-{n:04}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"v": pa.array([n], pa.int64())}), folder / "rows.parquet")
    return root


def complete(local: LocalApi) -> list[str]:
    return sorted(b.id for b in batches_in(f"file://{local.folder.path}/buffer") if b.complete)


@pytest.mark.usefixtures("kept")
def test_each_folder_becomes_a_batch_and_a_repetition_puts_nothing(local: LocalApi, tmp_path: Path) -> None:
    local.dataset("flights")
    root = a_root(tmp_path, 5)

    first = local.lethe("put", "flights", str(root), "--each", "--batch", "x-{name}")
    again = local.lethe("put", "flights", str(root), "--each", "--batch", "x-{name}", "-o", "json")

    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("dataset/flights: 5 batches put, 0 unchanged, 0 failed: 5 files, ")
    assert first.stdout.endswith(" bytes, 5 rows\n")
    assert Counter(b["done"] for b in json.loads(again.stdout)["batches"]) == {"unchanged": 5}
    assert complete(local) == [f"x-load-{n:04}" for n in range(5)]


@pytest.mark.usefixtures("kept")
def test_the_folder_of_each_batch_is_listed_once(
    local: LocalApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.dataset("flights")
    root, listed, listing = a_root(tmp_path, 3), Counter[str](), LocalStore.list

    def noted(store: LocalStore, folder: str, *rest: Any, **named: Any) -> Any:
        listed[folder.rstrip("/").rpartition("/")[2]] += 1
        return listing(store, folder, *rest, **named)

    monkeypatch.setattr(LocalStore, "list", noted)

    for _ in range(2):
        assert local.lethe("put", "flights", str(root), "--each").exit_code == 0
        assert listed == {f"batch_id=load-{n:04}": 1 for n in range(3)}
        listed.clear()


@pytest.mark.parametrize("parallel", [1, 4], ids=["in one group", "each alone"])
def test_what_is_promoted_is_skipped_and_each_failure_has_its_reason(
    local: LocalApi, kept: Kept, tmp_path: Path, parallel: int
) -> None:
    local.dataset("flights")
    root = a_root(tmp_path, 5)
    promoted = root / "load-0001/rows.parquet"
    objects = (BufferedObject("file:///b/batch_id=load-0001/rows.parquet", promoted.stat().st_size, "e"),)
    kept.commit(batches=[a_batch("load-0001", objects=objects), a_batch("load-0002")])
    (root / "load-0003/rows.parquet").write_bytes(b"no Parquet")

    done = local.lethe("put", "flights", *map(str, sorted(root.iterdir())), "--parallel", str(parallel))

    assert done.exit_code == 1, done.output
    assert "2 batches put, 1 unchanged, 2 failed" in done.stdout
    assert done.stdout.endswith(", 2 rows\n")
    failed = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert [line.split(": ")[1:3] for line in failed] == [
        ["load-0002", "BatchIdUsed"],
        ["load-0003", "UnreadableFile"],
    ]
    assert complete(local) == ["load-0000", "load-0004"]


@pytest.mark.usefixtures("kept")
def test_a_manifest_names_batches_and_a_dry_run_puts_none(local: LocalApi, tmp_path: Path) -> None:
    local.dataset("flights")
    a_root(tmp_path, 3)
    manifest = tmp_path / "manifest.csv"
    manifest.write_text(
        "batch,folder,file\na/1,loads/load-0000,\nb,,loads/load-0001/rows.parquet\nc,,loads/nothing.parquet\n"
    )

    dry = local.lethe("put", "flights", "--manifest", str(manifest), "--dry-run")
    assert (dry.exit_code, complete(local)) == (1, [])
    assert "2 batches put, 0 unchanged, 1 failed" in dry.stdout

    assert local.lethe("put", "flights", "--manifest", str(manifest), "-o", "name").stdout == "a/1\nb\n"
    assert complete(local) == ["a/1", "b"]


@pytest.mark.usefixtures("kept")
def test_another_file_of_a_complete_batch_is_no_repetition(local: LocalApi, tmp_path: Path) -> None:
    local.dataset("flights")
    root = a_root(tmp_path, 2)
    assert local.lethe("put", "flights", str(root), "--each").exit_code == 0
    pq.write_table(pa.table({"v": pa.array([1, 2, 3], pa.int64())}), root / "load-0000/rows.parquet")

    again = local.lethe("put", "flights", str(root), "--each")

    assert (again.exit_code, "1 unchanged, 1 failed" in again.stdout) == (1, True), again.output
    assert "failed: load-0000: OtherFiles: " in again.stderr


@pytest.mark.usefixtures("kept")
def test_an_interruption_says_what_is_left_and_a_repetition_puts_it(
    local: LocalApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.dataset("flights")
    root = a_root(tmp_path, 12)
    real, written = LocalStore.put_if_absent, list[str]()

    def cut_off(self: LocalStore, uri: str, content: bytes, retention: Any = None) -> bool:
        if len(written) == 9:
            raise KeyboardInterrupt
        written.append(uri)
        return real(self, uri, content, retention)

    monkeypatch.setattr(LocalStore, "put_if_absent", cut_off)
    stopped = local.lethe("put", "flights", str(root), "--each", "--parallel", "1")
    monkeypatch.setattr(LocalStore, "put_if_absent", real)

    assert stopped.exit_code == 1
    assert "4 batches put, 0 unchanged, 0 failed, 8 not tried" in stopped.stdout
    assert "Repeat the command to go on" in stopped.stderr
    assert complete(local) == [f"load-{n:04}" for n in range(4)]
    assert "8 batches put, 4 unchanged" in local.lethe("put", "flights", str(root), "--each").stdout


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.long)])
def test_a_killed_command_leaves_whole_batches_or_incomplete_ones_and_is_resumed(
    local: LocalApi, tmp_path: Path, count: int
) -> None:
    local.dataset("flights")
    root = a_root(tmp_path, count)
    command = ["put", "flights", str(root), "--each", "--dir", str(local.folder.path)]
    buffer = local.folder.path / "buffer"

    killed = subprocess.run([sys.executable, "-c", _DIES, str(count), *command], capture_output=True, timeout=600)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    found = complete(local)
    assert count // 3 <= len(found) < count  # a batch is two objects
    for batch in found:
        assert (buffer / f"batch_id={batch}/rows.parquet").read_bytes() == (root / batch / "rows.parquet").read_bytes()

    resumed = local.lethe("put", "flights", str(root), "--each")

    assert resumed.exit_code == 0, resumed.output
    assert f"{count - len(found)} batches put, {len(found)} unchanged, 0 failed" in resumed.stdout
    assert complete(local) == [f"load-{n:04}" for n in range(count)]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Name folders, or a --manifest."),
        (["--each", "--batch", "one"], "needs {name}"),
    ],
)
def test_arguments_that_name_no_batches_are_refused(
    local: LocalApi, tmp_path: Path, arguments: list[str], says: str
) -> None:
    local.dataset("flights")
    folders = [str(tmp_path)] if arguments else []

    refused = local.lethe("put", "flights", *folders, *arguments)

    assert (refused.exit_code, says in refused.stderr) == (2, True), refused.output
