"""A small year of flights: a person is erased from its three tables by one request, and every byte is searched afterwards.

The search is independent of Lethe: it decodes each file by itself, and reads all resources as any client does.
"""

import json
import shutil
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe_local.api.objects import kinds
from lethe_local.cli import client
from lethe_local.folder import NAMESPACE, Folder

from tests.local.lake import Lake
from tests.support.documents import resource
from tests.support.planted import Planted

PERSON, OTHER = "ada.81c4e7@example.org", "bob@example.org"
CARD, AIRCRAFT = 880_004_211, "N7719ADA-PRIVATE"
"""The person's number in the loyalty programme, and her own aircraft. Neither table of these knows an address."""
PLANTED = Planted((PERSON, AIRCRAFT, CARD))
PASSENGER = pa.struct([("email", pa.string()), ("name", pa.string())])
MONTHS = [date(2013, month, 1) for month in range(1, 13)]


def lookup(column: str, to: str) -> dict[str, Any]:
    return {"name": "customer", "column": column, "via": {"dataset": "bookings", "from": "passenger.email", "to": to}}


@dataclass(frozen=True)
class Year:
    """A Dataset with a batch for each month. Each batch has a row of the person and one of somebody else."""

    name: str
    schema: str
    spec: dict[str, Any]

    def rows(self, day: date) -> pa.Table:
        days = pa.array([day, day], pa.date32())
        match self.name:
            case "flights":
                return pa.table({"day": days, "tailnum": [AIRCRAFT, "N1"], "delay": pa.array([1, 2], pa.int32())})
            case "bookings":
                people = [{"email": PERSON, "name": "Ada"}, {"email": OTHER, "name": "Bob"}]
                columns = {"tailnum": [AIRCRAFT, "N1"], "card": pa.array([CARD, 5], pa.int64())}
                return pa.table({"day": days, "passenger": pa.array(people, PASSENGER), **columns})
            case "loyalty":
                return pa.table({"day": days, "card": pa.array([CARD, 5], pa.int64())})
        return pa.table({"day": days, "writers": pa.array([[PERSON, OTHER], [OTHER]], pa.list_(pa.string()))})

    def put(self, buffer: Path, batch: str, rows: pa.Table) -> None:
        folder = buffer / self.name / f"batch_id={batch}"
        folder.mkdir(parents=True)
        pq.write_table(rows, folder / "part-0.parquet", compression="zstd")
        (folder / "_SUCCESS").touch()

    def put_all(self, buffer: Path) -> None:
        for day in MONTHS:
            self.put(buffer, f"{day:%Y-%m}", self.rows(day))

    def manifest(self, buffer: Path, **more: Any) -> dict[str, Any]:
        spec = {
            "table": {
                "catalog": "local",
                "name": f"air.{self.name}",
                "create": {"schema": f"day DATE, {self.schema}, batch_id STRING", "partitionBy": ["months(day)"]},
            },
            "batchColumn": "batch_id",
            "buffer": {"uri": f"file://{buffer / self.name}", "retentionSeconds": 0},
            "consolidation": {"minBatches": 1},
            "snapshots": {"maxAgeSeconds": 0, "minToKeep": 1},
            **self.spec,
            **more,
        }
        return resource("Dataset", self.name, spec, labels={"about": "travellers"})


FLIGHTS = Year(
    "flights",
    "tailnum STRING, delay INT",
    {
        "identities": [lookup("tailnum", "tailnum")],
        "checks": [{"name": "plausible", "condition": "delay < 10000", "onFailure": "Hold"}],
    },
)
BOOKINGS = Year(
    "bookings",
    "passenger STRUCT<email: STRING, name: STRING>, tailnum STRING, card BIGINT",
    {"identities": [{"name": "customer", "column": "passenger.email"}]},
)
LOYALTY = Year("loyalty", "card BIGINT", {"identities": [lookup("card", "card")]})
LATE = Year(
    "complaints",
    "writers ARRAY<STRING>",
    {"identities": [{"name": "customer", "column": "writers.element"}]},
)
POLICY = resource(
    "VacuumPolicy",
    "travellers",
    {
        "datasetSelector": {"matchLabels": {"about": "travellers"}},
        "triggers": {"activeTombstones": 1, "evictByLeadSeconds": 86_400},
    },
)
BAD_DAY = pa.table(
    {"day": pa.array([MONTHS[2]], pa.date32()), "tailnum": [AIRCRAFT], "delay": pa.array([99_999], pa.int32())}
)


def put_bad_day(buffer: Path) -> None:
    """A batch that a check holds, and one that does not fit the table. Both are of the person."""
    FLIGHTS.put(buffer, "2013-03-held", BAD_DAY)
    FLIGHTS.put(buffer, "2013-03-refused", BAD_DAY.append_column("gate", pa.array(["A1"])))


@pytest.mark.long
def test_one_request_erases_a_person_from_a_year_of_flights_and_no_byte_is_left(lake: Lake, tmp_path: Path) -> None:
    ends = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    held = {"holds": [{"name": "case-7", "filter": "day = '2013-02-01'", "until": ends}]}
    for table in (FLIGHTS, BOOKINGS, LOYALTY):
        table.put_all(tmp_path)
    put_bad_day(tmp_path)
    lake.apply(*(t.manifest(tmp_path) for t in (BOOKINGS, LOYALTY)), FLIGHTS.manifest(tmp_path, **held), POLICY)
    for table in (FLIGHTS, BOOKINGS, LOYALTY):
        lake.wait_until(f"{table.name} promoted", lambda n=table.name: lake.promoted(12, n))  # type: ignore[misc]
    lake.wait_until("judged", lambda: batches(lake) == (1, 1))
    found = everything(lake, tmp_path)
    for place in ("warehouse/air/flights/data/", "warehouse/air/bookings/data/", "warehouse/air/loyalty/data/"):
        assert any(place in name for name in found), f"the search finds the planted values in {place}"

    asked = ("--everywhere", "--subject", "customer", "--values", "-", "-l", "about=travellers")
    made = lake.lethe(
        "erase", *asked, "--name", "erase-year", "--evict-by-seconds", "60", "--ticket", "T-1", told=f"{PERSON}\n"
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert any("secrets/" in name for name in everything(lake, tmp_path)), "the search finds the Secret"
    lake.wait_until("the hold is met", lambda: part(lake, "flights").get("reason") == "LegalHold")
    LATE.put_all(tmp_path)
    lake.apply(LATE.manifest(tmp_path))
    lake.wait_until("joined", lambda: subject(lake).get("selected") == 4)
    lake.wait_until("others go on", lambda: part(lake, "loyalty").get("state") in ("Hidden", "Purged", "Verified"))
    assert part(lake, "bookings")["state"] == "Waiting", "flights still look up in it"
    held["holds"][0]["until"] = f"{datetime.now(UTC) + timedelta(seconds=5):%Y-%m-%dT%H:%M:%SZ}"
    lake.apply(FLIGHTS.manifest(tmp_path, **held))

    for name in ("flights", "complaints", "bookings"):  # each has the time of two runs
        lake.wait_until(f"{name} hidden", lambda n=name: part(lake, n).get("state") in ("Hidden", "Purged", "Verified"))  # type: ignore[misc]
    for name in ("flights", "complaints", "bookings"):
        lake.wait_until(f"{name} verified", lambda n=name: part(lake, n).get("state") == "Verified")  # type: ignore[misc]
    lake.wait_until("one record", lambda: erased(lake)["status"] == "True")
    rows_erased = {d["name"]: d["rowsErased"] for d in subject(lake)["datasets"]}
    assert rows_erased == dict.fromkeys(("flights", "bookings", "loyalty", "complaints"), 12)
    assert "Not searched: held and refused batches of flights (1 held, 1 refused)" in erased(lake)["message"]
    record = lake.get("restatement", "erase-year")["status"]["erasure"]["record"]
    checked = lake.lethe("erasures", "verify", record, "--storage", "--values", "-", "--json", told=f"{PERSON}\n")
    assert (checked.returncode, json.loads(checked.stdout)["problems"]) == (0, []), checked.stderr

    # What the documentation leaves to people: the batches of the bad day. The mounted values go with their warm driver.
    lake.wait_until("the values are gone", lambda: not any("/erase/" in name for name in everything(lake, tmp_path)))
    bad = set(everything(lake, tmp_path))
    assert bad
    assert all("flights/" in n and "2013-03-" in n for n in bad), bad
    reverted = lake.lethe("revert", "flights", "2013-03-held", "--wait")
    assert reverted.returncode == 0, reverted.stderr
    for folder in (tmp_path / "flights" / "_refused", tmp_path / "flights" / "batch_id=2013-03-held"):
        shutil.rmtree(folder)
    lake.wait_until("nothing is left", lambda: not everything(lake, tmp_path))
    assert [rows(lake, t.name) for t in (FLIGHTS, BOOKINGS, LOYALTY, LATE)] == [12, 12, 12, 12]
    lake.done("delete", "restatement", "erase-year")
    for table in (FLIGHTS, BOOKINGS, LOYALTY, LATE):
        lake.done("delete", "dataset", table.name)
    lake.done("delete", "vacuumpolicy", "travellers")


def batches(lake: Lake) -> tuple[int, int]:
    """How many batches of the flights are held, and how many refused."""
    counts = (lake.get("dataset", "flights").get("status") or {}).get("batches") or {}
    return int(counts.get("held") or 0), int(counts.get("refused") or 0)


def subject(lake: Lake) -> dict[str, Any]:
    return dict((lake.get("restatement", "erase-year").get("status") or {}).get("subject") or {})


def part(lake: Lake, dataset: str) -> dict[str, Any]:
    return next((d for d in subject(lake).get("datasets") or () if d["name"] == dataset), {})


def erased(lake: Lake) -> dict[str, Any]:
    conditions = (lake.get("restatement", "erase-year").get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == "Erased"), {"status": "", "message": ""})


def everything(lake: Lake, buffer: Path) -> list[str]:
    """Where a planted value is: files of the lake and of the buffers, rows of databases, and resources of the API server."""
    files = (p for place in (lake.home, buffer) for p in place.rglob("*") if p.is_file())
    found = PLANTED.in_files(files)
    with client(Folder(lake.home)) as kube:
        for kind in kinds():
            found += PLANTED.in_objects(kind.key, kube.list(kind.resource, NAMESPACE if kind.namespaced else ""))
    return found


def rows(lake: Lake, name: str) -> int:
    return lethe.scan(lake.catalog().load_table(f"air.{name}")).count()
