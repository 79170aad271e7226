"""`lethe put` on a real table and a real folder, without an operator."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError
from lethe.base.objects import BufferedObject
from lethe.buffer.upload import LocalFile, plan_upload
from lethe.contract.settings import BufferLayout
from lethe.storage.local_store import LocalStore
from lethe_kubectl import put
from lethe_kubectl.local_batches import id_of
from lethe_kubectl.put import transfer

from tests.services.kubectl.conftest import LocalApi
from tests.support.builders import a_batch
from tests.tables.lethe.cli.conftest import Kept


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A batch of two Parquet files."""
    folder = tmp_path / "monday"
    folder.mkdir()
    for n in range(2):
        pq.write_table(pa.table({"v": pa.array([n, n], pa.int64())}), folder / f"part-{n}.parquet")
    return folder


def buffered(local: LocalApi) -> dict[str, bytes]:
    root = local.folder.path / "buffer"
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.mark.usefixtures("kept")
def test_a_folder_becomes_a_complete_batch_and_a_repetition_changes_nothing(local: LocalApi, folder: Path) -> None:
    local.dataset("flights")

    first, again = local.lethe("put", "flights", str(folder)), local.lethe("put", "flights", str(folder), "-o", "json")

    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("dataset/flights batch monday put: 2 files, ")
    assert first.stdout.endswith(", 4 rows\n")
    assert json.loads(again.stdout)["done"] == "unchanged"
    assert buffered(local) == {
        "batch_id=monday/_SUCCESS": b"",
        **{f"batch_id=monday/{p.name}": p.read_bytes() for p in folder.iterdir()},
    }


@pytest.mark.usefixtures("kept")
def test_an_interrupted_upload_goes_on_and_is_incomplete_until_its_end(
    local: LocalApi, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.dataset("flights")
    real, written = LocalStore.put_if_absent, []

    def cut_off(self: LocalStore, uri: str, content: bytes, retention: Any = None) -> bool:
        if written:
            raise KeyboardInterrupt
        written.append(uri)
        return real(self, uri, content, retention)

    monkeypatch.setattr(LocalStore, "put_if_absent", cut_off)
    assert local.lethe("put", "flights", str(folder)).exit_code != 0
    assert list(buffered(local)) == ["batch_id=monday/part-0.parquet"]

    monkeypatch.setattr(LocalStore, "put_if_absent", real)
    assert local.lethe("put", "flights", str(folder), "-o", "name").stdout == "monday\n"
    assert len(buffered(local)) == 3


def test_two_that_put_different_files_under_one_id_never_mix(tmp_path: Path) -> None:
    """Both have seen an empty buffer; the slower one finds what the other one wrote."""
    store, ends = LocalStore(), []
    barrier = threading.Barrier(2)

    def one(content: str) -> None:
        folder = tmp_path / content
        folder.mkdir()
        (folder / "p.csv").write_text(content)
        upload = plan_upload(
            f"file://{tmp_path}/buffer", BufferLayout.DIRECTORY, "batch_id", "a", [LocalFile("p.csv", len(content))]
        )
        barrier.wait(timeout=60)
        try:
            transfer(store, upload, {"p.csv": folder / "p.csv"}, lambda: None)
            ends.append(content)
        except put.InputError as e:
            ends.append(e.reason)

    threads = [threading.Thread(target=one, args=(c,)) for c in ("aaaa", "bbbb")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    (winner,) = [e for e in ends if e != "OtherFiles"]
    assert sorted(ends) == sorted([winner, "OtherFiles"])
    assert (tmp_path / "buffer/batch_id=a/p.csv").read_text() == winner


def bad_csv(folder: Path) -> None:
    (folder / "ok.csv").write_text("v\n1\n")
    (folder / "bad.csv").write_text("v\n1\nsecret-value\n")


def other_columns(folder: Path) -> None:
    (folder / "more.csv").write_text("v,secret_column\n1,2\n")


def another_format(folder: Path) -> None:
    pq.write_table(pa.table({"v": [1]}), folder / "x.csv")


def nothing(folder: Path) -> None:
    (folder / "_SUCCESS").touch()


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("on_failure", "expected", "said"),
    [
        ("Refuse", 10, "CheckFailed: check key (unique): 2 of 4 rows fail"),
        ("Hold", 0, "batch monday will be held until somebody approves it: check key (unique): 2 of 4 rows fail"),
    ],
)
def test_checks_of_the_dataset_refuse_a_batch_or_say_that_they_would_hold_it(
    local: LocalApi, folder: Path, on_failure: str, expected: int, said: str
) -> None:
    """Each value is twice in the batch."""
    local.dataset("flights", checks=[{"name": "key", "unique": ["v"], "onFailure": on_failure}])

    done = local.lethe("put", "flights", str(folder))

    assert done.exit_code == expected, done.output
    assert said in done.stderr


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (bad_csv, ("SchemaMismatch", "bad.csv: row ", "column v holds a value that is not of type int64")),
        (other_columns, ("SchemaMismatch", "more.csv", "a column that the table does not have (number 2 of 2)")),
        (another_format, ("UnreadableFile", "x.csv: it is a file of Parquet, expected CSV")),
        (nothing, ("NoDataFiles",)),
    ],
)
def test_what_a_consolidation_would_refuse_is_refused_before_anything_is_written(
    local: LocalApi, tmp_path: Path, make: Callable[[Path], None], parts: tuple[str, ...]
) -> None:
    """The message names the file and the column, and no value of the file."""
    local.dataset("flights", buffer={"uri": f"file://{local.folder.path}/buffer", "format": "csv"})
    folder = tmp_path / "bad"
    folder.mkdir()
    make(folder)

    refused = local.lethe("put", "flights", str(folder))

    assert refused.exit_code == 10, refused.output
    for part in parts:
        assert part in refused.stderr
    assert "secret" not in refused.output
    assert buffered(local) == {}


def test_an_id_that_is_used_is_refused(local: LocalApi, kept: Kept, folder: Path) -> None:
    local.dataset("flights")
    objects = (BufferedObject(f"file://{local.folder.path}/buffer/batch_id=monday/old.parquet", 7, "e"),)
    kept.commit(batches=[a_batch("monday", objects=objects)])

    refused = local.lethe("put", "flights", str(folder))

    assert (refused.exit_code, "BatchIdUsed" in refused.stderr) == (10, True), refused.output
    assert buffered(local) == {}
    assert local.lethe("put", "flights", str(folder), "--batch", "tuesday").exit_code == 0


@pytest.mark.usefixtures("kept")
def test_files_of_another_producer_under_the_same_id_are_left_alone(local: LocalApi, folder: Path) -> None:
    local.dataset("flights")
    other = local.folder.path / "buffer/batch_id=monday/part-9.parquet"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"theirs")

    refused = local.lethe("put", "flights", str(folder))

    assert (refused.exit_code, "OtherFiles" in refused.stderr) == (10, True), refused.output
    assert list(buffered(local)) == ["batch_id=monday/part-9.parquet"]


@pytest.mark.usefixtures("kept")
def test_a_dry_run_checks_and_writes_nothing(local: LocalApi, folder: Path) -> None:
    local.dataset("flights")

    dry = local.lethe("put", "flights", str(folder), "--dry-run")

    assert "batch monday put (dry run): 2 files" in dry.stdout
    assert buffered(local) == {}


@pytest.mark.usefixtures("kept")
def test_a_buffer_that_cannot_be_written_is_one_line(local: LocalApi, folder: Path) -> None:
    """A file where the buffer's folder should be stops also the superuser, who may write everywhere."""
    local.dataset("flights")
    (local.folder.path / "buffer").write_text("a file")

    refused = local.lethe("put", "flights", str(folder))

    assert (refused.exit_code, refused.stderr.count("\n")) == (20, 1), refused.output
    assert "StorageRefused" in refused.stderr


def test_before_the_table_exists_the_columns_are_not_checked(local: LocalApi, folder: Path) -> None:
    local.dataset("flights")

    done = local.lethe("put", "flights", str(folder))

    assert done.exit_code == 0, done.output
    assert "does not exist yet, so the columns of the files are not checked" in done.stderr


def test_the_id_is_the_given_one_or_that_of_the_folder() -> None:
    assert id_of("monday", "batch_id", "") == "monday"
    assert id_of("batch_id=a%2Fb", "batch_id", "") == "a/b"
    assert id_of("batch_id=a%2Fb", "batch_id", "c") == "c"
    with pytest.raises(InputError, match="has 257 characters, expected 1 to 256"):
        id_of("monday", "batch_id", "x" * 257)
