"""Patterns, ranges and long lists of batches, as users name them on the command line."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.base import names
from lethe.kube import CONFIG_MAPS, RESTATEMENTS
from lethe.ledger.ledger import BatchState
from lethe_kubectl import id_lists

from tests.services.kubectl.conftest import LocalApi
from tests.support.builders import a_batch
from tests.tables.lethe.cli.conftest import Kept


@pytest.fixture
def lake(local: LocalApi, kept: Kept) -> LocalApi:
    """A Dataset whose ledger has load-1 to load-3, of which load-3 is reverted."""
    with kept.table.transaction() as change:
        change.set_properties({names.CLAIM: "default/flights"})
    kept.commit(
        batches=[
            a_batch("load-1", rows=5),
            a_batch("load-2", rows=7),
            a_batch("load-3", rows=9, state=BatchState.REVERTED),
        ]
    )
    local.dataset("flights", table={"catalog": "local", "name": "air.flights", "adopt": True})
    return local


def restatements(local: LocalApi) -> list[Any]:
    return [r["spec"] for r in local.kube.list(RESTATEMENTS, "default")]


def test_a_pattern_reverts_what_matches_after_a_preview(lake: LocalApi) -> None:
    done = lake.lethe("revert", "flights", "--batches", "load-*", "--yes")

    assert done.exit_code == 0, done.output
    assert "Revert 2 batches of dataset/flights: 12 rows\n  first: load-1\n  last: load-2\n" in done.stderr
    assert "match and are left out: 1 reverted" in done.stderr
    assert [r["batchIds"] for r in restatements(lake)] == [["load-1", "load-2"]]


def test_without_a_terminal_a_selection_changes_nothing_unless_told(lake: LocalApi) -> None:
    refused = lake.lethe("erase", "flights", "--batches", "load-1..load-3")

    assert (refused.exit_code, "need --yes" in refused.stderr) == (2, True), refused.output
    assert restatements(lake) == []
    printed = lake.lethe("erase", "flights", "--batches", "load-1..load-3", "-o", "yaml")
    assert yaml.safe_load(printed.stdout)["spec"]["batchIds"] == ["load-1", "load-2", "load-3"]


@pytest.mark.parametrize(("answer", "count"), [("y\n", 1), ("n\n", 0)])
def test_on_a_terminal_it_asks(lake: LocalApi, monkeypatch: pytest.MonkeyPatch, answer: str, count: int) -> None:
    monkeypatch.setattr("lethe_kubectl.selection.is_terminal", lambda: True)

    lake.lethe("revert", "flights", "--batches", "load-1", told=answer)

    assert len(restatements(lake)) == count


def test_a_file_and_standard_input_name_batches(lake: LocalApi, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("load-1\n\nload-2\r\nload-1\n")

    by_file = lake.lethe("revert", "flights", "--batches-from", str(tmp_path / "ids.txt"), "--yes")
    replay = ("replay", "flights", "--batches-from", "-", "--with", "x", "--uri", "file:///x", "--yes")
    refused = lake.lethe(*replay, told="load-1\nnew\n")
    by_input = lake.lethe(*replay, "--allow-unknown", told="load-1\nnew\n")

    assert (by_file.exit_code, by_input.exit_code) == (0, 0), by_input.output
    assert (refused.exit_code, "UnknownBatches" in refused.stderr) == (10, True)
    assert "not in the ledger: 1" in by_input.stderr
    assert sorted(r["batchIds"] for r in restatements(lake)) == [["load-1", "load-2"], ["load-1", "new"]]
    assert lake.lethe("revert", "flights").exit_code == 2


def ids(tmp_path: Path, count: int) -> str:
    file = tmp_path / "ids.txt"
    file.write_text("".join(f"batch-{n:06}\n" for n in range(count)))
    return str(file)


def test_a_long_list_becomes_a_config_map_that_belongs_to_the_restatement(lake: LocalApi, tmp_path: Path) -> None:
    arguments = ("revert", "flights", "--batches-from", ids(tmp_path, 3000), "--yes")

    first, again = lake.lethe(*arguments), lake.lethe(*arguments)

    assert first.exit_code == 0, first.output
    assert " created\n" in first.stdout
    assert " unchanged\n" in again.stdout
    (made,) = lake.kube.list(RESTATEMENTS, "default")
    key = made["spec"]["batchIdsFrom"]["configMapKeyRef"]
    found = lake.kube.get(CONFIG_MAPS, "default", key["name"])
    assert len(found["data"][key["key"]].splitlines()) == 3000
    assert [o["uid"] for o in found["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]


def test_a_dry_run_of_a_long_list_plans_its_batches_and_leaves_nothing(lake: LocalApi, tmp_path: Path) -> None:
    file = ids(tmp_path, 3000)
    with Path(file).open("a") as more:
        more.write("load-1\n")

    dry = lake.lethe("revert", "flights", "--batches-from", file, "--allow-unknown", "--dry-run")

    assert dry.exit_code == 0, dry.output
    assert "5 rows" in dry.stdout
    assert (restatements(lake), lake.kube.list(CONFIG_MAPS, "default")) == ([], [])


def test_a_restatement_that_is_refused_leaves_no_list(lake: LocalApi, tmp_path: Path) -> None:
    refused = lake.lethe("revert", "flights", "--batches-from", ids(tmp_path, 3000), "--yes", "--reason", "x" * 2000)

    assert refused.exit_code == 10, refused.output
    assert lake.kube.list(CONFIG_MAPS, "default") == []


def test_a_list_that_no_config_map_can_hold_is_put_beside_the_buffer(
    lake: LocalApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_lists, "CONFIG_MAP_BYTES", 20_000)
    arguments = ("revert", "flights", "--batches-from", ids(tmp_path, 3000), "--yes")

    done = lake.lethe(*arguments)

    assert (done.exit_code, lake.lethe(*arguments).exit_code) == (0, 0), done.output
    (spec,) = restatements(lake)
    uri = spec["batchIdsFrom"]["uri"]
    assert uri.startswith(f"file://{lake.folder.path}/buffer-restatements/lists/revert-flights-")
    assert len(Path(uri.removeprefix("file://")).read_text().splitlines()) == 3000
    assert "ListTooLong" in lake.lethe(*arguments, "-o", "yaml").stderr
