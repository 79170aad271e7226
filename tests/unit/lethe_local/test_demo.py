"""What the demo needs before anything runs: its source, its folder and its manifests."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from lethe.base.errors import InputError
from lethe.cli.main import cli
from lethe_local.demo import story
from lethe_local.demo.story import ERASED, REPLACED, REPLACEMENT, REVERTED, TOMBSTONES, DemoLake
from lethe_local.folder import Folder


def lake(path: Path) -> DemoLake:
    return DemoLake(Folder(path))


def manifest(of: DemoLake, name: str) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = yaml.safe_load((of.manifests / f"{name}.yaml").read_text())
    return found


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:pkg_resources")
def test_the_source_has_every_flight_of_the_package(tmp_path: Path) -> None:
    story.write_source(tmp_path / "again.parquet")

    assert story.pq.read_table(tmp_path / "again.parquet").equals(story.pq.read_table(story.SOURCE))
    assert len(story.flights()) == 336_776


def test_the_manifests_name_what_the_demo_expects(tmp_path: Path) -> None:
    of = lake(tmp_path / "demo")

    of.claim()

    assert manifest(of, "restatement-revert")["spec"]["batchIds"] == list(REVERTED)
    assert manifest(of, "restatement-erase")["spec"]["batchIds"] == [ERASED]
    replay = manifest(of, "restatement-replay")["spec"]
    assert replay["batchIds"] == [REPLACED]
    assert replay["replacement"] == {"batchId": REPLACEMENT, "uri": f"file://{of.restated}/{REPLACEMENT}/"}
    assert manifest(of, "vacuumpolicy")["spec"]["triggers"] == {"activeTombstones": TOMBSTONES - 1}
    dataset = manifest(of, "dataset")["spec"]
    assert dataset["buffer"] == {"uri": f"file://{of.buffer}"}
    assert dataset["table"]["catalog"] == "local"  # type: ignore[index]


def test_a_second_demo_begins_with_an_empty_folder(tmp_path: Path) -> None:
    of = lake(tmp_path / "demo")
    of.claim()
    (of.folder.path / "state.db").touch()

    of.claim()

    assert not (of.folder.path / "state.db").exists()


def test_a_folder_with_other_files_or_in_use_is_refused_and_kept(tmp_path: Path) -> None:
    """The demo must not remove the state of a `lethe local` that somebody uses."""
    (tmp_path / "state.db").touch()
    of = lake(tmp_path / "demo")
    of.claim()
    (of.folder.path / "state.db").touch()

    with pytest.raises(InputError, match="FolderNotEmpty"):
        lake(tmp_path).claim()
    with of.folder.locked(), pytest.raises(InputError, match="AlreadyRunning"):
        of.claim()

    assert (tmp_path / "state.db").exists()
    assert (of.folder.path / "state.db").exists()


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    refused = CliRunner().invoke(cli, ["demo", "--dir", str(tmp_path / "file" / "demo")])

    assert refused.exit_code == 10
    assert f"FolderNotWritable: {tmp_path}/file/demo: Not a directory" in refused.output
