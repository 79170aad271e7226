"""`lethe replay --from` uploads the new batch and creates the Restatement, on a real table and a real folder."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from lethe.base import names
from lethe.kube import RESTATEMENTS

from tests.services.kubectl.conftest import LocalApi
from tests.support.builders import a_batch
from tests.tables.lethe.cli.conftest import Kept


@pytest.fixture
def lake(local: LocalApi, kept: Kept) -> LocalApi:
    with kept.table.transaction() as change:
        change.set_properties({names.CLAIM: "default/flights"})
    kept.commit(batches=[a_batch("A", rows=1), a_batch("B", rows=1)])
    local.dataset("flights", table={"catalog": "local", "name": "air.flights", "adopt": True})
    return local


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "corrected"
    folder.mkdir()
    for n in range(2):
        pq.write_table(pa.table({"v": pa.array([n, n], pa.int64())}), folder / f"part-{n}.parquet")
    return folder


def uploaded(local: LocalApi) -> list[str]:
    root = local.folder.path / "buffer-restatements"
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def replays(local: LocalApi) -> list[Any]:
    return [r["spec"] for r in local.kube.list(RESTATEMENTS, "default")]


def test_the_folder_is_uploaded_beside_the_buffer_and_a_repetition_changes_nothing(
    lake: LocalApi, folder: Path
) -> None:
    first, again = (lake.lethe("replay", "flights", "A", "--from", str(folder)) for _ in range(2))

    assert (first.exit_code, again.exit_code) == (0, 0), first.output + again.output
    assert "2 files" in first.stderr
    assert "4 rows" in first.stderr
    assert " created\n" in first.stdout
    assert " unchanged\n" in again.stdout
    (spec,) = replays(lake)
    new = spec["replacement"]["batchId"]
    assert new.startswith("A.")
    assert spec["batchIds"] == ["A"]
    assert spec["replacement"]["uri"] == f"file://{lake.folder.path}/buffer-restatements/batch_id={new}/"
    assert uploaded(lake) == [f"batch_id={new}/{f}" for f in ("_SUCCESS", "part-0.parquet", "part-1.parquet")]
    assert not (lake.folder.path / "buffer").exists()


def test_other_content_is_another_batch(lake: LocalApi, folder: Path) -> None:
    lake.lethe("replay", "flights", "A", "--from", str(folder))
    pq.write_table(pa.table({"v": pa.array([7, 7], pa.int64())}), folder / "part-0.parquet")

    assert lake.lethe("replay", "flights", "A", "--from", str(folder)).exit_code == 0

    assert len({r["replacement"]["batchId"] for r in replays(lake)}) == 2


def test_a_dry_run_and_a_printed_resource_upload_nothing(lake: LocalApi, folder: Path) -> None:
    dry = lake.lethe("replay", "flights", "A", "B", "--from", str(folder), "--dry-run")
    printed = lake.lethe("replay", "flights", "A", "B", "--from", str(folder), "--with", "C", "-o", "yaml")

    assert "(not uploaded): 2 files" in dry.stderr, dry.output
    assert dry.exit_code == 0, dry.output
    assert "the rows of 2 files" in dry.stdout
    assert yaml.safe_load(printed.stdout)["spec"]["replacement"]["batchId"] == "C"
    assert (uploaded(lake), replays(lake)) == ([], [])


def test_the_id_and_the_folder_can_be_given(lake: LocalApi, folder: Path, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/restated/C/"

    done = lake.lethe("replay", "flights", "A", "--from", str(folder), "--with", "C", "--uri", uri)

    assert done.exit_code == 0, done.output
    assert replays(lake)[0]["replacement"] == {"batchId": "C", "uri": uri}
    assert sorted(p.name for p in (tmp_path / "restated/C").iterdir()) == [
        "_SUCCESS",
        "part-0.parquet",
        "part-1.parquet",
    ]


def test_the_buffer_is_no_place_for_a_replacement(lake: LocalApi, folder: Path) -> None:
    inside = f"file://{lake.folder.path}/buffer/C"

    refused = lake.lethe("replay", "flights", "A", "--from", str(folder), "--uri", inside)

    assert (refused.exit_code, "ReplacementInBuffer" in refused.stderr) == (10, True), refused.output
    assert not (lake.folder.path / "buffer").exists()


def test_without_a_folder_the_new_batch_has_to_be_named(lake: LocalApi) -> None:
    refused = lake.lethe("replay", "flights", "A", "--with", "B")

    assert (refused.exit_code, "--with and --uri, or its local folder by --from" in refused.stderr) == (2, True)


def test_what_get_writes_can_be_replayed(lake: LocalApi, kept: Kept, tmp_path: Path) -> None:
    kept.append("A", "B")
    rows = tmp_path / "rows"

    got = lake.lethe("get", "flights", "A", "--to", str(rows))
    done = lake.lethe("replay", "flights", "A", "--from", str(rows))

    assert (got.exit_code, got.stdout.startswith("batch A: 1 rows")) == (0, True), got.output
    assert (done.exit_code, "1 files" in done.stderr) == (0, True), done.output
