"""`lethe plan` on `lethe local`: what it says is what the apply then does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.local.lake import Lake, orders, restatement, running
from tests.support.documents import resource

BATCHES = {"monday": (1, 2, 3), "tuesday": (4, 5), "wednesday": (6,), "thursday": (7, 8)}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake of this file."""
    with running(tmp_path_factory.mktemp("planned")) as lake:
        yield lake


@pytest.fixture(scope="module")
def dataset_plan(own: Lake) -> dict[str, Any]:
    """What the plan said about the Dataset before it was applied. Its batches are promoted since."""
    for batch, ids in BATCHES.items():
        own.put(batch, *ids)
    found = plan(own, orders(own.buffer))
    own.apply(orders(own.buffer))
    own.wait_until("promoted", lambda: own.promoted(len(BATCHES)))
    return found


def changed(lake: Lake, **spec: Any) -> dict[str, Any]:
    """The Dataset with other fields."""
    document = orders(lake.buffer)
    return {**document, "spec": {**document["spec"], **spec}}


def planned(lake: Lake, *documents: dict[str, Any], code: int = 0) -> dict[str, Any]:
    """The plan of some resources, as JSON."""
    told = yaml.safe_dump_all(documents)
    ended = lake.lethe("plan", "-f", "-", "-o", "json", told=told)
    assert ended.returncode == code, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def plan(lake: Lake, document: dict[str, Any]) -> dict[str, Any]:
    """What the plan says about one resource."""
    (found,) = planned(lake, document)["resources"]
    return dict(found)


def done(lake: Lake, document: dict[str, Any]) -> dict[str, Any]:
    """Apply a Restatement. What its status says in the end: its plan, and its result."""
    name = document["metadata"]["name"]
    lake.apply(document)
    lake.done("wait", "restatement", name, "--for", "Succeeded")
    status = lake.get("restatement", name)["status"]
    return {**status["plan"], **status["result"]}


def data_files(lake: Lake) -> dict[str, int]:
    """The sizes of the live data files, by path."""
    return {t.file.file_path: t.file.file_size_in_bytes for t in lake.table().scan().plan_files()}


def test_a_revert_and_its_undo_do_what_their_plans_say(dataset: Lake) -> None:
    revert = restatement("planned", "Revert", batchIds=["tuesday", "nowhere"], unknownBatches="Allow")
    before = dataset.ids()

    said = plan(dataset, revert)["effect"]
    result = done(dataset, revert)
    undo = restatement("planned-undo", "Undo", undoes={"name": "planned"})
    said_of_undo = plan(dataset, undo)["effect"]
    result_of_undo = done(dataset, undo)

    assert said["rowsDeleted"] == result["rowsDeleted"] == 1
    assert said["batches"]["unknown"] == result["unknownBatchIds"] == ["nowhere"]
    assert said["tombstonesAdded"] == result["tombstonesAdded"] == 2
    assert said_of_undo["rowsRestored"] == result_of_undo["rowsRestored"] == 1
    assert dataset.ids() == before


@pytest.mark.long
@pytest.mark.usefixtures("dataset_plan")
def test_an_erase_and_the_vacuum_that_follows_do_what_their_plans_say(own: Lake) -> None:
    erase = restatement("erase", "Erase", batchIds=["thursday"])
    said = plan(own, erase)["effect"]
    result = done(own, erase)
    policy = resource("VacuumPolicy", "soon", {"datasetSelector": {}, "triggers": {"activeTombstones": 1}})
    before = data_files(own)

    decision = planned(own, policy)["resources"][0]["effect"]["datasets"][0]
    own.apply(policy)
    own.wait_until("vacuumed", lambda: "lastRun" in (own.get("dataset", "orders")["status"].get("vacuum") or {}))

    assert said["rowsDeleted"] == result["rowsDeleted"] == 2
    assert (decision["reason"], decision["starts"]) == ("TooManyTombstones", True)
    gone = before.keys() - data_files(own).keys()
    assert decision["plan"]["files"] + decision["plan"]["wholeFiles"] == len(gone) > 0
    assert decision["plan"]["bytes"] <= sum(before[f] for f in gone)
    last = own.get("dataset", "orders")["status"]["vacuum"]["lastRun"]["message"]
    own.done("delete", "vacuumpolicy", "soon")  # it would purge what another test reverts
    did = "{tombstones} tombstones purged, {files} files rewritten, {wholeFiles} files deleted"
    assert last.startswith(did.format(**decision["plan"]))
    assert not set(BATCHES["thursday"]) & set(own.ids())


def test_exit_codes_say_whether_something_would_change(dataset: Lake, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "orders.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(orders(dataset.buffer)))
    same = dataset.lethe("plan", "-f", str(tmp_path), "--exit-code")
    file.write_text(yaml.safe_dump(changed(dataset, consolidation={"minBatches": 2})))
    different = dataset.lethe("plan", "-f", str(tmp_path), "--exit-code")
    without = dataset.lethe("plan", "-f", str(tmp_path))

    assert (same.returncode, different.returncode, without.returncode) == (0, 3, 0), different.stderr
    assert "spec.consolidation.minBatches  1 -> 2" in different.stdout
    assert different.stdout.splitlines()[-1] == "0 to create, 1 to change, 0 unchanged"
