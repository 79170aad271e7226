"""`lethe get` writes the rows or the original files of one batch, and says when they are gone."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from lethe.base.errors import InputError
from lethe.base.objects import BufferedObject
from lethe.cli.read import _paths
from lethe.ledger.ledger import BatchState
from lethe.read import data_file
from lethe.storage.local_store import LocalStore
from pyiceberg.catalog import Catalog

from tests.support.builders import a_batch
from tests.tables.lethe.cli.conftest import NAME, Kept

Lethe = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_the_rows_of_one_batch_are_written_without_the_batch_column(flights: Kept, lethe: Lethe, folder: Path) -> None:
    flights.append("A", "B", "A")
    flights.commit(batches=[a_batch("A", rows=2), a_batch("B", rows=1)])

    done = lethe("get", NAME, "A", "--to", folder)

    assert done.exit_code == 0, done.output
    assert done.output.startswith("batch A: 2 rows, ")
    assert [p.name for p in folder.iterdir()] == ["rows.parquet"]
    assert sorted(pq.read_table(folder / "rows.parquet").to_pylist(), key=str) == [{"v": 0}, {"v": 2}]


def test_csv_and_json_are_written_too(flights: Kept, lethe: Lethe, tmp_path: Path) -> None:
    flights.append("A", "B")

    assert lethe("get", NAME, "A", "--to", tmp_path / "c", "--format", "csv").exit_code == 0
    assert lethe("get", NAME, "A", "--to", tmp_path / "j", "--format", "json").exit_code == 0

    with (tmp_path / "c/rows.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"v": "0"}]
    assert json.loads((tmp_path / "j/rows.jsonl").read_text()) == {"v": 0}


def test_a_missing_text_does_not_become_an_empty_one_on_its_way_back(
    catalog: Catalog, lethe: Lethe, tmp_path: Path
) -> None:
    """`lethe put` reads an empty field of CSV as an empty text."""
    rows = pa.table({"batch_id": ["A", "A"], "note": [None, ""]})
    catalog.create_table("air.notes", rows.schema).append(rows)

    refused = lethe("get", "lite.air.notes", "A", "--to", tmp_path / "c", "--format", "csv")

    assert (refused.exit_code, "NotInFormat: column note has NULL" in refused.output) == (10, True), refused.output
    assert lethe("get", "lite.air.notes", "A", "--to", tmp_path / "j", "--format", "json").exit_code == 0
    written = (tmp_path / "j/rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["note"] for line in written] == [None, ""]


@pytest.mark.parametrize("state", [BatchState.REVERTED, BatchState.REPLACED])
def test_a_batch_that_was_taken_back_is_written_only_at_a_snapshot_from_before(
    flights: Kept, lethe: Lethe, folder: Path, state: BatchState
) -> None:
    flights.append("A")
    before = flights.commit(batches=[a_batch("A", rows=1)])
    flights.commit("A", batches=[a_batch("A", rows=1, state=state)])

    refused = lethe("get", NAME, "A", "--to", folder)
    at = lethe("get", NAME, "A", "--to", folder, "--at", before)

    assert (refused.exit_code, "lethe: BatchTakenBack: " in refused.output) == (10, True), refused.output
    assert f"is {state.value}" in refused.output
    assert at.exit_code == 0, at.output
    assert pq.read_table(folder / "rows.parquet").to_pylist() == [{"v": 0}]


def test_an_erased_batch_is_not_written_in_any_way(flights: Kept, lethe: Lethe, folder: Path) -> None:
    flights.append("A")
    before = flights.commit(batches=[a_batch("A", rows=1)])
    flights.commit("A", batches=[a_batch("A", rows=1, state=BatchState.ERASED)])

    for options in ((), ("--at", before), ("--original",)):
        refused = lethe("get", NAME, "A", "--to", folder, *options)
        assert (refused.exit_code, "lethe: BatchErased: " in refused.output) == (10, True), refused.output
    assert not folder.exists()


def test_an_unknown_batch_and_a_folder_with_files_are_refused(flights: Kept, lethe: Lethe, folder: Path) -> None:
    flights.append("A")

    unknown = lethe("get", NAME, "Z", "--to", folder)
    assert (unknown.exit_code, "lethe: UnknownBatch: " in unknown.output) == (10, True), unknown.output
    assert list(folder.iterdir()) == []

    (folder / "mine").touch()
    occupied = lethe("get", NAME, "A", "--to", folder)
    assert (occupied.exit_code, "lethe: FolderNotEmpty: " in occupied.output) == (10, True), occupied.output


def test_a_promoted_batch_without_rows_is_a_file_without_rows(flights: Kept, lethe: Lethe, folder: Path) -> None:
    flights.append("A")
    flights.commit(batches=[a_batch("empty", rows=0)])

    assert lethe("get", NAME, "empty", "--to", folder).exit_code == 0
    assert pq.read_table(folder / "rows.parquet").num_rows == 0


def test_an_interrupted_get_leaves_no_file_of_the_name_and_can_be_repeated(
    flights: Kept, lethe: Lethe, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights.append("A")
    real = data_file.read

    def cut_off(*_: object) -> object:
        yield pa.record_batch({"v": pa.array([0], pa.int64())})
        raise KeyboardInterrupt

    monkeypatch.setattr(data_file, "read", cut_off)
    assert lethe("get", NAME, "A", "--to", folder).exit_code != 0
    assert all(p.name.startswith(".") for p in folder.iterdir())

    monkeypatch.setattr(data_file, "read", real)
    assert lethe("get", NAME, "A", "--to", folder).exit_code == 0
    assert [p.name for p in folder.iterdir()] == ["rows.parquet"]


def buffered(flights: Kept, tmp_path: Path) -> Path:
    """A promoted batch of two files, still in the buffer."""
    batch = tmp_path / "buffer/batch_id=a%2F1"
    for name, content in {"dt=1/x.csv": "v\n1\n", "y.csv": "v\n2\n", "_SUCCESS": ""}.items():
        (batch / name).parent.mkdir(parents=True, exist_ok=True)
        (batch / name).write_text(content)
    listed = [(o.key, o.size, o.etag) for o in LocalStore().list(f"file://{batch}")]
    objects = tuple(BufferedObject(key, size, etag) for key, size, etag in listed)
    flights.commit(batches=[a_batch("a/1", rows=2, objects=objects)])
    return batch


def test_the_original_files_are_copied_as_they_are(flights: Kept, lethe: Lethe, folder: Path, tmp_path: Path) -> None:
    buffered(flights, tmp_path)

    done = lethe("get", NAME, "a/1", "--to", folder, "--original")

    assert (done.exit_code, done.output.startswith("batch a/1: 2 files, 8 bytes: ")) == (0, True), done.output
    files = {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert files == {"dt=1/x.csv": "v\n1\n", "y.csv": "v\n2\n"}


@pytest.mark.parametrize("change", [Path.unlink, lambda p: p.write_text("v\n99\n")], ids=["deleted", "changed"])
def test_original_files_that_are_gone_are_not_copied_in_part(
    flights: Kept, lethe: Lethe, folder: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    change(buffered(flights, tmp_path) / "y.csv")

    gone = lethe("get", NAME, "a/1", "--to", folder, "--original")

    assert (gone.exit_code, "lethe: OriginalsGone: 1 of 2 files" in gone.output) == (10, True), gone.output
    assert list(folder.iterdir()) == []


def test_a_batch_whose_files_the_ledger_does_not_name_has_no_originals(
    flights: Kept, lethe: Lethe, folder: Path
) -> None:
    flights.commit(batches=[a_batch("A", rows=1, objects=())])

    assert "lethe: NoOriginals: " in lethe("get", NAME, "A", "--to", folder, "--original").output
    assert "lethe: UnknownBatch: " in lethe("get", NAME, "Z", "--to", folder, "--original").output


def test_files_in_other_places_keep_their_folders_below_the_one_that_they_share() -> None:
    keys = [f"s3://b/warehouse/t/data/{name}" for name in ("r1/x.parquet", "r2/x.parquet")]
    paths = _paths([BufferedObject(k, 1, "e") for k in keys], "batch_id", "A")

    assert {path: o.key for path, o in paths.items()} == {"r1/x.parquet": keys[0], "r2/x.parquet": keys[1]}


def test_a_path_that_leads_out_of_the_folder_is_refused() -> None:
    outside = BufferedObject("s3://b/buffer/batch_id=A/../../x.csv", 1, "e")
    with pytest.raises(InputError, match="UnusableName"):
        _paths([outside], "batch_id", "A")
