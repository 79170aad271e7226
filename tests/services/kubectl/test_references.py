"""What the run of another program delivered: put with its id, shown with it, and taken back by it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from lethe.base import names
from lethe.iceberg import catalogs
from lethe.kube import RESTATEMENTS
from lethe.ledger.ledger import BatchState

from tests.services.kubectl.conftest import LocalApi
from tests.support.builders import a_batch
from tests.support.tables import new_table
from tests.tables.lethe.cli.conftest import Kept

RUN = "dag-7"


@pytest.fixture
def lake(local: LocalApi, kept: Kept) -> LocalApi:
    """Dataset flights has A and B of the run, of which B is reverted; Dataset delays has nothing of it."""
    catalog = catalogs.load("local", local.folder.catalogs)
    catalog.create_namespace("more")
    delays = Kept(new_table(catalog, "more.delays"))
    for table, name in ((kept, "flights"), (delays, "delays")):
        with table.table.transaction() as change:
            change.set_properties({names.CLAIM: f"default/{name}"})
    kept.commit(
        batches=[
            a_batch("A", rows=5, reference=RUN),
            a_batch("B", rows=7, reference=RUN, state=BatchState.REVERTED),
            a_batch("C", rows=9, reference="dag-8"),
        ]
    )
    delays.commit(batches=[a_batch("D")])
    local.dataset("flights", table={"catalog": "local", "name": "air.flights", "adopt": True})
    buffer = {"uri": f"file://{local.folder.path}/delays"}
    local.dataset("delays", table={"catalog": "local", "name": "more.delays", "adopt": True}, buffer=buffer)
    return local


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    folder = tmp_path / "W"
    folder.mkdir()
    pq.write_table(pa.table({"v": [1, 2]}), folder / "part.parquet")
    return folder


def specs(local: LocalApi) -> dict[str, Any]:
    found = (r["spec"] for r in local.kube.list(RESTATEMENTS, "default"))
    return {spec["datasetRef"]["name"]: spec for spec in found}


def test_a_dry_run_names_what_the_run_delivered_into_the_table_and_the_buffer(lake: LocalApi, batch: Path) -> None:
    put = lake.lethe("put", "flights", str(batch), "--reference", RUN)
    dry = lake.lethe("revert", "flights", "--reference", RUN, "--dry-run")

    assert (put.exit_code, dry.exit_code) == (0, 0), put.output + dry.output
    marker = lake.folder.path / "buffer/batch_id=W/_SUCCESS"
    assert json.loads(marker.read_bytes()) == {"reference": RUN}
    assert "1 in the table, 1 waits in the buffer and will not be promoted" in dry.stdout
    assert "5 rows" in dry.stdout
    assert specs(lake) == {}


def test_one_command_reverts_what_the_run_delivered_into_each_dataset(lake: LocalApi, batch: Path) -> None:
    only_flights = lake.lethe("revert", "--everywhere", "--reference", RUN, "-o", "yaml")
    assert lake.lethe("put", "delays", str(batch), "--reference", RUN).exit_code == 0

    done = lake.lethe("revert", "--everywhere", "--reference", RUN, "--reason", "wrong rates")

    assert [d["spec"]["datasetRef"]["name"] for d in yaml.safe_load(only_flights.stdout)["items"]] == ["flights"]
    assert done.exit_code == 0, done.output
    spec = {"operation": "Revert", "selector": {"reference": RUN}, "reason": "wrong rates"}
    assert {
        name: {k: v for k, v in found.items() if k in (*spec, "batchIds")} for name, found in specs(lake).items()
    } == {"flights": spec, "delays": spec}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("revert", "delays", "--reference", RUN), 10, "Neither the table nor the buffer has a batch of it."),
        (("revert", "--everywhere", "--reference", "dag-9"), 10, "none of the 2 Datasets"),
        (("revert", "--everywhere"), 2, "--everywhere needs --reference"),
        (("revert", "flights", "A", "--reference", RUN), 2, "takes no batches"),
        (("revert", "--reference", RUN), 2, "Name a DATASET"),
        (("redact", "flights", "--reference", RUN, "--set", "v=null"), 2, "takes no --reference"),
    ],
)
def test_what_names_no_batch_or_two_kinds_of_them_changes_nothing(
    lake: LocalApi, arguments: tuple[str, ...], code: int, says: str
) -> None:
    refused = lake.lethe(*arguments)

    assert (refused.exit_code, says in refused.output) == (code, True), refused.output
    assert specs(lake) == {}


def test_lists_and_histories_show_who_delivered_a_batch(lake: LocalApi) -> None:
    listed = lake.on_table("batches", "local.air.flights", "-o", "json")
    history = lake.on_table("history", "local.air.flights", "A", "-o", "json")

    assert {b["id"]: b["reference"] for b in json.loads(listed.stdout)} == {"A": RUN, "B": RUN, "C": "dag-8"}
    assert [c["reference"] for c in json.loads(history.stdout)] == [RUN]
    assert RUN in lake.on_table("batches", "local.air.flights", "-o", "wide").stdout
