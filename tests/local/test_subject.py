"""One request for every table of a person, through the operator: hidden, purged and verified everywhere, and one record."""

import base64
import json
import os
import re
import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base import names
from lethe.kube import JOBS
from lethe_local.cli import client
from lethe_local.folder import NAMESPACE, Folder
from lethe_local.node import is_running, kill_leftover, processes_of

from tests.local.lake import Lake
from tests.support.documents import resource

PERSON, OTHER = "ada.7f3c91@example.org", "bob@example.org"
KEY = 770_001_337
"""The person's number in the loyalty programme. The table of the programme has no address."""
ADDRESS = pa.struct([("email", pa.string())])


@dataclass(frozen=True)
class Stock:
    """A Dataset with one batch."""

    name: str
    schema: str
    rows: pa.Table
    spec: dict[str, Any]

    def put(self, buffer: Path) -> None:
        folder = buffer / self.name / "batch_id=first"
        folder.mkdir(parents=True)
        pq.write_table(self.rows, folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()

    def manifest(self, buffer: Path) -> dict[str, Any]:
        create = {"schema": f"{self.schema}, batch_id STRING"}
        spec = {
            "table": {"catalog": "local", "name": f"shop.{self.name}", "create": create},
            "batchColumn": "batch_id",
            "buffer": {"uri": f"file://{buffer / self.name}", "retentionSeconds": 0},
            "consolidation": {"minBatches": 1},
            **self.spec,
        }
        return resource("Dataset", self.name, spec, labels={"about": "people"})


def emails(*values: str) -> pa.Array:
    return pa.array([{"email": v} for v in values], ADDRESS)


BOOKINGS = Stock(
    "bookings",
    "customer STRUCT<email: STRING>, card BIGINT, passengers ARRAY<STRUCT<email: STRING>>",
    pa.table(
        {
            "customer": emails(PERSON, OTHER, OTHER),
            "card": pa.array([KEY, 5, 6], pa.int64()),
            "passengers": pa.array([[], [{"email": OTHER}, {"email": PERSON}], []], pa.list_(ADDRESS)),
        }
    ),
    {
        "identities": [
            {"name": "customer", "column": "customer.email"},
            {"name": "customer", "column": "passengers.element.email"},
        ]
    },
)
SEATS = Stock(
    "seats",
    "who STRING, seat STRING",
    pa.table({"who": [PERSON, OTHER], "seat": ["1A", "2B"]}),
    {"identities": [{"name": "customer", "column": "who"}]},
)
LOYALTY = Stock(
    "loyalty",
    "card BIGINT, points BIGINT",
    pa.table({"card": pa.array([KEY, 5], pa.int64()), "points": pa.array([10, 20], pa.int64())}),
    {
        "identities": [
            {
                "name": "customer",
                "column": "card",
                "via": {"dataset": "bookings", "from": "customer.email", "to": "card"},
            }
        ]
    },
)
DAILY = Stock(
    "daily",
    "source_batch STRING, sold BIGINT",
    pa.table({"source_batch": ["first", "first", "earlier"], "sold": pa.array([3, 4, 5], pa.int64())}),
    {"derivedFrom": [{"dataset": "bookings", "batchColumn": "source_batch"}]},
)
"""It is made from the batches of bookings, and has nothing by which the person could be found."""
LATE = Stock(
    "complaints",
    "sender STRING",
    pa.table({"sender": [PERSON, OTHER]}),
    {"identities": [{"name": "customer", "column": "sender"}]},
)
POLICY = resource(
    "VacuumPolicy",
    "people",
    {
        "datasetSelector": {"matchLabels": {"about": "people"}},
        "triggers": {"activeTombstones": 1, "evictByLeadSeconds": 86_400},
    },
)


def secret(name: str, value: str) -> dict[str, Any]:
    data = {"values": base64.b64encode(value.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def request(name: str) -> dict[str, Any]:
    values = {"secretKeyRef": {"name": name, "key": "values"}}
    spec = {
        "operation": "Erase",
        "datasetSelector": {"matchLabels": {"about": "people"}},
        "subject": {"identity": "customer", "valuesFrom": values, "deleteValues": True},
        "evictBySeconds": 60,
        "ticket": "PRIVACY-12",
    }
    return resource("Restatement", name, spec)


def conditions(lake: Lake, name: str) -> dict[str, str]:
    return conditions_of(lake.get("restatement", name).get("status") or {})


def conditions_of(status: dict[str, Any]) -> dict[str, str]:
    return {c["type"]: c["status"] for c in status.get("conditions") or ()}


def copies(*places: Path) -> list[str]:
    """The files below these folders that have the person's address or number in any form in which they may be stored."""
    forms = [PERSON.encode(), base64.b64encode(PERSON.encode())[:24], KEY.to_bytes(8, "little"), str(KEY).encode()]
    files = (p for place in places for p in place.rglob("*") if p.is_file())
    return [str(p) for p in files if any(form in p.read_bytes() for form in forms)]


def subject_of(lake: Lake) -> dict[str, Any]:
    return dict((lake.get("restatement", "erase-12").get("status") or {}).get("subject") or {})


def ask(lake: Lake, folder: Path, *stocks: Stock) -> None:
    """Deliver the batches, and ask at once for the erasure."""
    for stock in stocks:
        stock.put(folder)
    lake.apply(*(s.manifest(folder) for s in stocks), POLICY)
    lake.apply(secret("erase-12", PERSON), request("erase-12"))
    lake.wait_until("begun", lambda: bool(subject_of(lake)))


def require_erased(lake: Lake, folder: Path, erased: dict[str, int]) -> None:
    """The end: each Dataset is verified, one record names them all, and no copy is left, nor the Secret.

    Args:
        erased: Rows, by Dataset.
    """
    for name in erased:  # each has the time of one run
        shown = {"Verified"} if name == list(erased)[-1] else {"Hidden", "Purged", "Verified", "Blocked"}
        lake.wait_until(f"{name} {shown}", lambda n=name, s=shown: state_of(lake, n) in s)  # type: ignore[misc]
    lake.wait_until("erased", lambda: conditions(lake, "erase-12").get("Erased") == "True")
    status = lake.get("restatement", "erase-12")["status"]
    assert {d["name"]: d["rowsErased"] for d in status["subject"]["datasets"]} == erased
    record = json.loads(Path(status["erasure"]["record"].removeprefix("file://")).read_bytes())
    assert [d["dataset"] for d in record["datasets"]] == sorted(erased)
    assert PERSON not in json.dumps(record)
    checked = lake.lethe(
        "erasures", "verify", "restatement/erase-12", "--storage", "--values", "-", "--json", told=f"{PERSON}\n"
    )
    assert json.loads(checked.stdout)["problems"] == [], checked.stderr
    lake.wait_until("swept and forgotten", lambda: not copies(lake.home, folder))
    forget(lake, erased)


def forget(lake: Lake, datasets: Iterable[str]) -> None:
    """Delete the request, the Datasets and their tables, whose ledgers know what became of this batch and request."""
    lake.done("delete", "restatement", "erase-12")
    for name in datasets:
        lake.done("delete", "dataset", name)
        for table in (name, f"{name}{names.BATCHES_SUFFIX}"):
            location = Path(lake.table(table).location().removeprefix("file://"))
            lake.catalog().drop_table(f"shop.{table}")
            shutil.rmtree(location)


def jobs(lake: Lake) -> set[str]:
    with client(Folder(lake.home)) as kube:
        return {job["metadata"]["name"] for job in kube.list(JOBS, NAMESPACE)}


def state_of(lake: Lake, dataset: str) -> str:
    return str(part_of(lake, dataset).get("state", ""))


def part_of(lake: Lake, dataset: str) -> dict[str, Any]:
    """What the request's status says of a Dataset; empty: nothing yet."""
    return next((d for d in subject_of(lake).get("datasets") or () if d["name"] == dataset), {})


def test_tables_that_know_only_keys_or_batches_are_erased_before_the_table_of_the_keys(
    lake: Lake, tmp_path: Path
) -> None:
    ask(lake, tmp_path, BOOKINGS, LOYALTY, DAILY)
    lake.wait_until("hidden", lambda: subject_of(lake).get("hidden") == 3)
    assert "lethe-warm-driver-values" in jobs(lake)
    assert not [name for name in jobs(lake) if "-restatement-" in name]  # no run has started a driver of its own
    require_erased(lake, tmp_path, {"daily": 2, "loyalty": 1, "bookings": 2})


def test_a_redact_changes_one_column_in_all_tables_and_a_table_without_it_is_blocked(
    lake: Lake, tmp_path: Path
) -> None:
    names_of = {"labels": {"about": "redacted"}}
    for stock in (SEATS, LATE):
        stock.put(tmp_path)
    lake.apply(*({**s.manifest(tmp_path), "metadata": {"name": s.name, **names_of}} for s in (SEATS, LATE)))
    arguments = ("redact", "--everywhere", "--subject", "customer", "-l", "about=redacted", "--values", "-")
    asked = lake.lethe(*arguments, "--set", "who=null", "--name", "erase-12", told=f"{PERSON}\n")
    assert asked.returncode == 0, asked.stderr

    lake.wait_until("seats redacted", lambda: part_of(lake, "seats").get("rowsRedacted") == 1)
    lake.wait_until("complaints blocked", lambda: state_of(lake, "complaints") == "Blocked")
    status = lake.get("restatement", "erase-12")["status"]
    parts = {d["name"]: d for d in status["subject"]["datasets"]}
    found = {n: sorted(map(str, lethe.scan(lake.table(n)).to_arrow()[c].to_pylist())) for n, c in WHO.items()}
    why = lake.lethe("why", "restatement/erase-12").stdout
    forget(lake, parts)

    assert parts["complaints"]["reason"] == "ColumnNotFound"
    assert "names who" in parts["complaints"]["message"]
    assert "complaints" in why
    assert found == {"seats": ["None", OTHER], "complaints": [PERSON, OTHER]}
    assert conditions_of(status)["Stalled"] == "True"


WHO = {"seats": "who", "complaints": "sender"}
"""The column with the address, by Dataset."""


@pytest.mark.long
def test_a_dataset_joins_late_and_the_operator_is_killed_on_the_way(lake: Lake, tmp_path: Path) -> None:
    ask(lake, tmp_path, BOOKINGS, SEATS, LOYALTY)
    os.kill(lake.part("operator"), signal.SIGKILL)
    LATE.put(tmp_path)
    lake.apply(LATE.manifest(tmp_path))
    lake.wait_until("joined", lambda: subject_of(lake)["selected"] == 4)
    require_erased(lake, tmp_path, {"loyalty": 1, "seats": 1, "complaints": 1, "bookings": 2})


@pytest.mark.long
def test_drivers_and_operators_killed_while_rows_are_hidden_purged_and_verified_leave_no_copy(
    lake: Lake, tmp_path: Path
) -> None:
    """In the table with the keys, and in that of the address. Each kill hits a driver that has not finished its step."""
    ask(lake, tmp_path, BOOKINGS, LOYALTY)
    left = {name: list(STAGES) for name in ("loyalty", "bookings")}
    while any(left.values()):
        lake.wait_until(f"a driver to kill, of {left}", lambda: kill_next(lake, left), every_seconds=0.02)
    require_erased(lake, tmp_path, {"loyalty": 1, "bookings": 2})


def kill_next(lake: Lake, left: dict[str, list[str]]) -> bool:
    """Kill the driver in one of the stages that are left, and the operator. Whether there was such a driver."""
    for name, stages in left.items():
        if stages and kill_driver(lake, name, stages[0]):
            stages.pop(0)
            kill_leftover(lake.home / "parts" / "operator")
            return True
    return False


def head_kind(lake: Lake, dataset: str) -> str:
    """What kind of run has committed the head."""
    head = lake.table(dataset).current_snapshot()
    return str(head.summary[names.RUN_KIND] or "") if head is not None and head.summary is not None else ""


def has_record(lake: Lake, dataset: str) -> bool:
    location = Path(lake.table(dataset).location().removeprefix("file://"))
    return any(location.glob(f"{names.ERASURES_FOLDER}/*.json"))


def is_past(lake: Lake, dataset: str, stage: str) -> bool:
    """Whether the table shows that a stage is done."""
    kind = head_kind(lake, dataset)
    match stage:
        case "hidden":
            return kind in ("Restatement", "Vacuum")
        case "purged":
            return kind == "Vacuum"
    return has_record(lake, dataset)


STAGES: dict[str, tuple[str, str]] = {
    "hidden": ("Restatement", "Consolidation"),
    "purged": ("Vacuum", "Restatement"),
    "verified": ("Vacuum", "Vacuum"),
}
"""Of the driver to kill: the kind of its run, and of the run that has committed the head."""


def kill_driver(lake: Lake, dataset: str, stage: str) -> bool:
    """Kill the driver of a Dataset that is at a stage, and has not finished it. Whether there was one.

    A run in a warm driver takes a second, so its driver is stopped before anything is asked.
    """
    kind, of_head = STAGES[stage]
    for folder in (lake.home / "runs").iterdir():
        run = run_in(folder)
        if run.startswith(f"{dataset}-{kind.lower()}-"):
            with stopped(folder):
                runs = (lake.get("dataset", dataset).get("status") or {}).get("runs") or ()
                has_ended = any(r["name"] == run and "finishTime" in r for r in runs)
                if not has_ended and head_kind(lake, dataset) == of_head and not is_past(lake, dataset, stage):
                    kill_leftover(folder)
                    return True
    return False


def run_in(folder: Path) -> str:
    """The name of the run that the process of a folder carries out, or has carried out last; "": none."""
    if not is_running(folder):
        return ""
    log = (folder / "log").read_text(errors="replace")
    if folder.name.startswith("lethe-warm-driver-"):
        return next(reversed(re.findall(r"The run begins: (\S+)", log)), "")
    return folder.name.rpartition("-")[0] if "lethe_spark: run " in log else ""


@contextmanager
def stopped(folder: Path) -> Iterator[None]:
    """The processes of a folder do nothing meanwhile, and nothing happens between a look at their table and their end."""
    processes = list(processes_of(folder))
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
