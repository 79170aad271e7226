"""`lethe local` as its users run it: the operator, the committer and runs as processes, and the commands beside them."""

import base64
import json
import signal
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.local.cluster import LocalCluster
from tests.local.lake import Lake, orders, restatement
from tests.support.documents import resource

LIMIT_SECONDS = 120


def test_batches_are_promoted(dataset: Lake) -> None:
    assert dataset.ids() == [1, 2, 3]
    assert "shop.orders" in dataset.done("get", "datasets")


def test_the_commands_revert_wait_and_undo(dataset: Lake) -> None:
    reverted = dataset.lethe("revert", "orders", "monday", "--name", "by-command", "--wait")
    rows_after = dataset.ids()
    again = dataset.lethe("revert", "orders", "monday", "--name", "by-command", "-o", "name")
    undone = dataset.lethe("undo", "by-command", "--wait")

    assert (reverted.returncode, undone.returncode) == (0, 0), reverted.stderr + undone.stderr
    assert "2 rows deleted" in reverted.stdout
    assert rows_after == [3]
    assert again.stdout == "restatement/by-command\n"
    assert dataset.ids() == [1, 2, 3]


def test_a_notebook_finds_the_table_and_reverts_through_the_operator(
    dataset: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is configured but the folder of `lethe local`."""
    for variable in ("PYICEBERG_HOME", "KUBECONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LETHE_LOCAL", str(dataset.home))

    tables = [lethe.table(name) for name in ("orders", "shop.orders", "local.shop.orders")]
    reverted = tables[0].revert("monday", name="by-notebook")

    assert {t.name for t in tables} == {"local.shop.orders"}
    assert (reverted.restatement, reverted.through, reverted.rows_deleted) == ("by-notebook", "operator", 2)
    assert reverted.snapshot_id == tables[1].scan().snapshot_id
    assert tables[1].scan().to_arrow()["id"].to_pylist() == [3]
    assert tables[1].history("monday")["state"].to_pylist()[-1] == "reverted"
    assert dataset.lethe("undo", "by-notebook", "--wait").returncode == 0
    assert dataset.ids() == [1, 2, 3]


def test_the_commands_show_where_they_look_and_what_a_resource_waits_for(dataset: Lake) -> None:
    status, why = dataset.lethe("status"), dataset.lethe("why", "dataset/orders")
    unknown, misspelt = dataset.lethe("why", "dataset/order"), dataset.lethe("why", "ordrs")

    assert f"lethe local in {dataset.home}, namespace default" in status.stderr
    assert "dataset/orders" in status.stdout
    assert why.stdout.startswith("dataset/orders")
    assert (unknown.returncode, unknown.stderr) == (
        10,
        "lethe: UnknownName: namespace default has no Dataset order. Do you mean orders?\n",
    )
    assert "Do you mean orders?" in misspelt.stderr


def test_the_runs_of_a_dataset_are_shown(dataset: Lake) -> None:
    shown, unknown = dataset.lethe("runs", "orders", "-o", "json"), dataset.lethe("runs", "order")

    run = json.loads(shown.stdout)["runs"][-1]
    assert (run["dataset"], run["kind"], run["phase"]) == ("orders", "Consolidation", "Succeeded")
    assert run["name"] in dataset.lethe("runs").stdout
    assert "Do you mean orders?" in unknown.stderr


def test_what_the_runs_of_a_dataset_used_is_shown(dataset: Lake) -> None:
    used = {d["name"]: d for d in json.loads(dataset.lethe("cost", "-o", "json").stdout)["datasets"]}["orders"]
    table = dataset.lethe("cost", "--cpu-hour", "3600").stdout

    assert used["cpuSeconds"] >= used["runs"] >= 1
    assert used["files"] >= 1
    assert used["bytes"] > 0
    assert "orders" in [line.split()[0] for line in table.splitlines()[1:] if line]


def test_the_log_of_a_run_is_shown_by_its_name(dataset: Lake) -> None:
    runs = json.loads(dataset.lethe("runs", "orders", "-o", "json").stdout)["runs"]
    name = next(r["name"] for r in runs if r["kind"] == "Consolidation")
    shown, followed = dataset.lethe("logs", name), dataset.lethe("logs", name, "--follow")
    local, unknown = dataset.run("logs", name), dataset.lethe("logs", name[:-1])

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout
    assert shown.stdout == followed.stdout == local.stdout
    assert (unknown.returncode, f"Do you mean {name}?" in unknown.stderr) == (10, True), unknown.stderr


@pytest.mark.long
def test_the_batches_of_a_dataset_are_listed_and_a_requested_vacuum_is_waited_for(dataset: Lake) -> None:
    listed = dataset.lethe("batches", "orders", "-o", "json")
    vacuumed = dataset.lethe("vacuum-now", "orders", "--wait")

    states = {b["id"]: b["state"] for b in json.loads(listed.stdout)}
    assert (states["monday"], states["tuesday"]) == ("promoted", "promoted"), listed.stderr
    assert vacuumed.returncode == 0, vacuumed.stderr + dataset.logs()
    assert vacuumed.stdout.splitlines()[0] == "dataset/orders vacuum requested"


def test_a_local_folder_is_put_into_the_buffer_promoted_and_then_known(dataset: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "thursday"
    folder.mkdir()
    pq.write_table(pa.table({"id": pa.array([50], pa.int64())}), folder / "part-0.parquet")
    before = dataset.batches()

    done = dataset.lethe("put", "orders", str(folder))
    dataset.wait_until("promoted", lambda: dataset.promoted(before + 1))
    again = dataset.lethe("put", "orders", str(folder), "-o", "json")
    reverted = dataset.lethe("revert", "orders", "thursday", "--wait")

    assert done.stdout.startswith("dataset/orders batch thursday put: 1 files, "), done.stderr
    assert json.loads(again.stdout)["done"] == "unchanged", again.stderr
    assert "1 rows deleted" in reverted.stdout, reverted.stderr
    assert "BatchIdUsed" in dataset.lethe("put", "orders", str(folder)).stderr


def test_values_to_erase_come_from_standard_input_and_are_never_printed(dataset: Lake) -> None:
    """The Secret belongs to the Restatement, and a second one of the same name leaves none behind."""
    erased = dataset.lethe(
        "erase", "orders", "--column", "id", "--values", "-", "--name", "gone", "--dry-run", told="31337\n"
    )
    made = dataset.lethe("erase", "orders", "--column", "id", "--values", "-", "--name", "gone", told="31337\n")
    again = dataset.lethe("erase", "orders", "--column", "id", "--values", "-", "--name", "gone", told="31337\n")
    secrets = json.loads(dataset.done("get", "secrets", "-o", "json"))["items"]
    dataset.done("delete", "restatement", "gone")

    assert (erased.returncode, made.returncode, again.returncode) == (0, 0, 10), erased.stderr + made.stderr
    assert "AlreadyExists" in again.stderr
    assert [
        s["metadata"]["ownerReferences"][0]["name"] for s in secrets if s["metadata"]["name"].startswith("erase-")
    ] == ["gone"]
    for ended in (erased, made, again):
        assert "31337" not in ended.stdout + ended.stderr


def test_after_an_erase_nothing_but_the_table_holds_the_value(dataset: Lake) -> None:
    """The run got it from the Secret, which belongs to the Restatement. All is searched: logs, databases, volumes."""
    value, before = 3133731337, dataset.batches()
    dataset.put("person", value)
    dataset.wait_until("promoted", lambda: dataset.promoted(before + 1))
    location = Path(dataset.table().location().removeprefix("file://"))
    encoded = base64.b64encode(str(value).encode())[:12]

    def copies() -> list[str]:
        files = (p for p in dataset.home.rglob("*") if p.is_file() and not p.is_relative_to(location))
        return [str(p) for p in files if any(form in p.read_bytes() for form in (str(value).encode(), encoded))]

    arguments = ("erase", "orders", "--column", "id", "--values", "-", "--name", "forget", "--wait=hidden")
    erased = dataset.lethe(*arguments, told=f"{value}\n")
    held = copies()
    dataset.wait_until("ended", lambda: {Path(p).parent for p in copies()} == {dataset.home})
    dataset.done("delete", "restatement", "forget")

    assert erased.returncode == 0, erased.stdout + erased.stderr
    assert held  # the Secret, at least, was there
    dataset.wait_until("forgotten", lambda: not copies())
    assert value not in dataset.ids()


def test_an_erase_finds_by_another_table_what_came_to_its_buffer_just_before(lake: Lake, tmp_path: Path) -> None:
    """The batch waits for a hundred others there. The Erase makes it the first one of its table."""
    trips = replace(lake, buffer=tmp_path / "trips", manifest=tmp_path / "trips.yaml")
    listed = orders(tmp_path / "people", "people")
    listed["spec"]["table"]["create"]["schema"] = "email STRING, number STRING, batch_id STRING"
    listed["spec"]["consolidation"] = {"minBatches": 100, "maxAgeSeconds": 86_400}
    trips.put("monday", 3133731337, 2, 3)
    trips.apply(orders(trips.buffer, "trips"), listed)
    trips.wait_until("promoted", lambda: trips.promoted(1, "trips"))
    values = tmp_path / "people.txt"
    values.write_text("ada@example.org\n")
    erase = restatement(
        "by-people",
        "Erase",
        "trips",
        rows={
            "column": "id",
            "valuesFrom": {"uri": f"file://{values}"},
            "via": {"dataset": "people", "from": "email", "to": "number"},
        },
    )

    folder = tmp_path / "people" / "batch_id=first"
    folder.mkdir(parents=True)
    people = pa.table({"email": ["ada@example.org", "bob@example.org"], "number": ["3133731337", "2"]})
    pq.write_table(people, folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()
    trips.apply(erase)
    trips.wait_until("erased", lambda: ended(trips, "by-people"))

    status = trips.get("restatement", "by-people")["status"]
    assert (status["phase"], status["result"]["rowsErased"]) == ("Succeeded", 1), status
    assert (trips.ids("trips"), trips.batches("people")) == ([2, 3], 1)
    files = [f for f in lake.home.rglob("log") if f.is_file()]
    assert files
    assert not [f for f in files if "3133731337" in f.read_text(errors="replace")]
    trips.done("delete", "dataset", "trips")
    trips.done("delete", "dataset", "people")


def ended(lake: Lake, restatement: str) -> bool:
    conditions = (lake.get("restatement", restatement).get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Succeeded" and c["status"] != "Unknown" for c in conditions)


def test_a_redact_changes_the_values_of_rows_that_stay(dataset: Lake) -> None:
    value, before = 4143414341, dataset.batches()
    dataset.put("concealed", value)
    dataset.wait_until("promoted", lambda: dataset.promoted(before + 1))
    rows = len(dataset.ids())

    arguments = ("redact", "orders", "--column", "id", "--values", "-", "--set", "id=constant:-7", "--name", "conceal")
    redacted = dataset.lethe(*arguments, "--wait=hidden", told=f"{value}\n")

    assert redacted.returncode == 0, redacted.stdout + redacted.stderr
    assert "1 rows were redacted" in redacted.stdout + redacted.stderr
    assert str(value) not in redacted.stdout + redacted.stderr
    assert (value in dataset.ids(), -7 in dataset.ids(), len(dataset.ids())) == (False, True, rows)
    status = dataset.get("restatement", "conceal")["status"]
    assert (status["phase"], status["result"]["rowsRedacted"]) == ("Succeeded", 1)
    assert "Redact" in dataset.done("get", "restatement", "conceal")


def test_a_held_batch_waits_for_an_approval_and_delays_no_other(lake: Lake, tmp_path: Path) -> None:
    """Two runs, and the committer in between."""
    mine = replace(lake, buffer=tmp_path / "buffer", manifest=tmp_path / "checked.yaml")
    checked = orders(mine.buffer, "checked")
    checked["spec"]["checks"] = [{"name": "small", "condition": "id < 100", "onFailure": "Hold"}]
    mine.put("bad", 1, 1000)
    mine.put("good", 2)

    mine.apply(checked)
    mine.wait_until("promoted", lambda: mine.promoted(1, "checked"))
    held = mine.get("dataset", "checked")["status"]["batches"]["heldBatches"]
    listed = json.loads(mine.lethe("batches", "checked", "--state", "held", "-o", "json").stdout)
    approved = mine.lethe("approve", "checked", "bad", "--reason", "known", "--wait")
    mine.wait_until("promoted after the approval", lambda: mine.promoted(2, "checked"))
    (bad,) = [b for b in json.loads(mine.lethe("batches", "checked", "-o", "json").stdout) if b["id"] == "bad"]
    mine.done("delete", "dataset", "checked")

    assert [(b["batchId"], b["reason"]) for b in held] == [("bad", "CheckFailed")]
    assert held[0]["message"].startswith("check small (condition): 1 of 2 rows fail, first row 1 of file://")
    assert [b["id"] for b in listed] == ["bad"]
    assert approved.returncode == 0, approved.stdout + approved.stderr
    assert "1 batches were approved. The next consolidation promotes them." in approved.stdout
    assert (bad["state"], bad["rows"], bad["reason"]) == ("promoted", 2, "known")


def test_rows_that_are_too_old_leave_once_a_policy_says_so(lake: Lake, tmp_path: Path) -> None:
    """The operator decides, a run drops the file of the old day, and the status says when the next rows are due."""
    mine = replace(lake, buffer=tmp_path / "buffer", manifest=tmp_path / "visits.yaml")
    visits = orders(mine.buffer, "visits")
    visits["metadata"]["labels"] = {"keep": "a-month"}
    visits["spec"]["table"]["create"] = {
        "schema": "id BIGINT, seen DATE, batch_id STRING",
        "partitionBy": ["days(seen)"],
    }
    folder = mine.buffer / "batch_id=mixed"
    folder.mkdir(parents=True)
    days = [date(2020, 1, 1), datetime.now(UTC).date()]
    pq.write_table(pa.table({"id": [1, 2], "seen": pa.array(days, pa.date32())}), folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()
    mine.apply(visits)
    mine.wait_until("promoted", lambda: mine.promoted(1, "visits"))
    rules = {"triggers": {}, "retention": {"column": "seen", "maxAgeDays": 30}}
    policy = resource("VacuumPolicy", "a-month", {"datasetSelector": {"matchLabels": {"keep": "a-month"}}, **rules})

    mine.apply(visits, policy)
    mine.wait_until("removed", lambda: mine.ids("visits") == [2])

    mine.wait_until("told", lambda: "retention" in mine.get("dataset", "visits")["status"].get("vacuum", {}))
    told = mine.get("dataset", "visits")["status"]["vacuum"]["retention"]
    mine.done("delete", "vacuumpolicy", "a-month")
    mine.done("delete", "dataset", "visits")
    assert datetime.fromisoformat(told["nextTime"]) == datetime.combine(days[1], time(), UTC) + timedelta(days=31)
    assert "left" not in told


def test_after_a_kill_it_goes_on_where_it_was(dataset: Lake) -> None:
    """Everything is killed at once, while a run is under way."""
    before, rows = dataset.batches(), dataset.ids()
    dataset.put("wednesday", 4)
    LocalCluster(dataset.home / "kubeconfig").wait_for(
        "datasets/orders",
        lambda body: any("finishTime" not in run for run in (body.get("status") or {}).get("runs") or ()),
        within_seconds=LIMIT_SECONDS,
        why="an active run",
    )

    dataset.end(signal.SIGKILL)
    dataset.up()

    dataset.wait_until("promoted", lambda: dataset.promoted(before + 1))
    assert dataset.ids() == [*rows, 4]


def test_a_second_one_on_the_folder_is_refused(dataset: Lake) -> None:
    refused = dataset.run("up")

    assert refused.returncode == 10
    assert "AlreadyRunning" in refused.stderr


@pytest.mark.long
def test_ctrl_c_ends_every_process_and_keeps_the_state(dataset: Lake) -> None:
    before = dataset.batches()

    assert dataset.end(signal.SIGINT) == 0

    assert dataset.processes() == []
    gone = dataset.run("get", "datasets")
    assert gone.returncode == 20
    assert "lethe local up" in gone.stderr
    dataset.up()
    assert before > 0
    assert dataset.batches() == before
