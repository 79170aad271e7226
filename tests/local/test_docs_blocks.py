"""The documentation as a reader follows it on `lethe local`: the chosen blocks run to their end, in the order of their page.

A line chooses the block that contains it. Blocks that need a cloud, a cluster or another service are left out; what differs on
one machine is in `REPLACED`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from tests.local.lake import Lake
from tests.support.clock import wait_until
from tests.support.documents import resource
from tests.support.servers.postgres import free_port
from tests.unit.docs.blocks import ROOT, SHELLS, Block, blocks_of, script

pytestmark = pytest.mark.long

TIMEOUT_SECONDS = 120
# A cluster has namespaces and a key for signatures; one machine has one namespace and no key.
REPLACED = (
    (re.compile(r" -n (air|team-a)\b"), ""),
    (re.compile(r"--all-namespaces"), ""),
    (re.compile(r"\bair/erase-"), "default/erase-"),
    (re.compile(r" --public-key \S+"), ""),
    (re.compile(r"(create secret generic .*)"), r"\1 --dry-run=client -o yaml | kubectl apply -f -"),
    (re.compile(r"kubectl -n lethe-system .*\n"), ""),
)
BATCHES = {
    "flights": {
        "2013-02-08.UA": [("ada", 1), ("bob", 2)],
        "2013-02-08.EV": [("cyd", 3)],
        "2013-12-31.UA": [("dan", 4)],
    },
    "bookings": {"2026-02-28": [("4711", 5), ("4712", 6)], "2026-03-01": [("4711", 7)]},
}
PERSON = {"flights": "passenger", "bookings": "customer"}


@dataclass
class Reader:
    """Somebody with a terminal in the folder `work`, who has `lethe local up --gateway` running in another one."""

    lake: Lake
    work: Path
    gateway: str

    def follows(self, page: str, *lines: str, **variables: str) -> list[str]:
        """Run the blocks of a page that these lines choose. A YAML block with a title is a file.

        Returns: what each prints.
        """
        blocks = list(blocks_of(page, (ROOT / page).read_text()))
        for block in blocks:
            file = self.work / block.title
            if block.language == "yaml" and re.fullmatch(r"[\w-]+\.yaml", block.title) and not file.exists():
                file.write_text(block.text)
        return [self.runs(chosen(blocks, line), variables) for line in lines]

    def runs(self, block: Block, variables: dict[str, str]) -> str:
        text = script(block)
        for pattern, by in REPLACED:
            text = pattern.sub(by, text)
        done = self.shell(text, variables)
        assert done.returncode == 0, f"{block}\n{text}\n{done.stdout}{self.lake.logs()}"
        return done.stdout

    def shell(self, text: str, variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text], env={**self.lake.environ, **variables}, cwd=self.work,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip

    def token(self) -> str:
        return (self.lake.home / "account" / "token").read_text()


def chosen(blocks: Sequence[Block], line: str) -> Block:
    return next(b for b in blocks if b.language in SHELLS and line in b.text)


def a_dataset(name: str, buffer: Path) -> dict[str, object]:
    columns = f"{PERSON[name]} STRING, amount BIGINT, batch_id STRING"
    spec = {
        "table": {"catalog": "main", "name": f"air.{name}", "create": {"schema": columns}},
        "batchColumn": "batch_id",
        "buffer": {"uri": f"file://{buffer}"},
        "consolidation": {"minBatches": 1},
        "snapshots": {"maxAgeSeconds": 1, "minToKeep": 1},  # an erasure does not wait for old snapshots
    }
    about = {}
    if name == "bookings":
        about = {"about": "customers"}
        spec["identities"] = [{"name": "customer", "column": PERSON[name]}]
    return resource("Dataset", name, spec, labels={"team": "air", **about})


def write_batch(folder: Path, person: str, rows: Sequence[tuple[str, int]]) -> None:
    folder.mkdir(parents=True)
    people, amounts = zip(*rows, strict=True)
    table = pa.table({person: pa.array(people), "amount": pa.array(amounts, pa.int64())})
    pq.write_table(table, folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()


def write_command(folder: Path, name: str) -> None:
    """`lethe`, and `kubectl-lethe`, which kubectl finds by its name."""
    (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m lethe.cli "$@"\n')
    (folder / name).chmod(0o755)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("docs")
    home, work, programs, buffers = (folder / n for n in ("lethe", "work", "bin", "buffers"))
    for made in (home, work, programs):
        made.mkdir()
    write_command(programs, "lethe")
    write_command(programs, "kubectl-lethe")
    catalog = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"}
    (home / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"main": catalog}}))
    SqlCatalog("main", **catalog)  # makes its tables
    port = free_port()
    environ = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "LETHE_LOCAL": str(home),
        "PYICEBERG_HOME": str(home),
        "KUBECONFIG": str(home / "kubeconfig"),
    }
    lake = Lake(home, buffers, folder / "apply.yaml", environ)
    lake.up("--gateway", "--gateway-port", str(port))
    for name, batches in BATCHES.items():
        for batch, rows in batches.items():
            write_batch(buffers / name / f"batch_id={batch}", PERSON[name], rows)
    lake.apply(*(a_dataset(n, buffers / n) for n in BATCHES))
    for name, batches in BATCHES.items():
        lake.wait_until("promoted", lambda n=name, of=batches: promoted(lake, n) == len(of))  # type: ignore[misc]
    yield Reader(lake, work, f"http://127.0.0.1:{port}")
    lake.stop()


def promoted(lake: Lake, name: str) -> int:
    status = lake.get("dataset", name).get("status") or {}
    return int((status.get("batches") or {}).get("promoted") or 0)


def test_local(reader: Reader) -> None:
    (reader.work / "dataset.yaml").write_text(yaml.safe_dump(a_dataset("flights", reader.lake.buffer / "flights")))
    spec = {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchIds": ["2013-02-08.EV"]}
    (reader.work / "restatement.yaml").write_text(yaml.safe_dump(resource("Restatement", "revert-blizzard", spec)))

    (printed,) = reader.follows("docs/local.md", "lethe local apply -f dataset.yaml")

    assert "restatement/revert-blizzard" in printed


def test_the_command_line(reader: Reader) -> None:
    write_batch(reader.work / "2014-01-01.UA", "passenger", [("eve", 8)])
    (reader.work / "values.txt").write_text("bob\n")
    blocks = list(blocks_of("docs/cli.md", (ROOT / "docs/cli.md").read_text()))
    block = chosen(blocks, "lethe revert flights 2013-02-08.UA")
    without_server = "\n".join(line for line in block.text.splitlines() if "https://" not in line)
    named = without_server.replace("./2013-12-31.UA", "./2014-01-01.UA")

    done = reader.shell(named, {})

    assert done.returncode == 0, done.stdout
    assert "kind: Restatement" in (reader.work / "restatements.yaml").read_text()


def test_the_table_of_batches(reader: Reader) -> None:
    reader.follows("docs/batches.md", "lethe track main.air.flights --rebuild")


def test_a_person_is_erased_and_the_record_verified(reader: Reader) -> None:
    (reader.work / "customers.txt").write_text("4711\n")

    printed = reader.follows(
        "docs/erase-a-person.md",
        "create secret generic erase-privacy-12",
        "lethe plan -f erase-privacy-12.yaml",
        "apply -f erase-privacy-12.yaml",
        "lethe vacuum-now bookings",
    )
    record = reader.lake.get("restatement", "erase-privacy-12")["status"]["erasure"]["record"]
    verified = reader.shell(f"lethe erasures verify {record} --storage", {})

    assert "bookings" in printed[1]
    assert "erase-privacy-12-bookings" in printed[2]
    assert "condition met" in printed[3]
    assert verified.returncode == 0, verified.stdout
    assert "main.air.bookings: 1 erasures: no problems" in verified.stdout
    assert "erase-privacy-12" not in reader.lake.done("get", "secrets")
    assert not (reader.work / "customers.txt").exists()


def test_erasures(reader: Reader) -> None:
    spec = {"datasetRef": {"name": "flights"}, "operation": "Erase", "batchIds": ["2013-12-31.UA"]}
    reader.lake.apply(resource("Restatement", "erase-ua", {**spec, "evictBySeconds": 86400}))
    reader.lake.done("wait", "restatement", "erase-ua", "--for", "Succeeded")
    assert reader.shell("lethe vacuum-now flights --wait", {}).returncode == 0
    reader.lake.done("wait", "restatement", "erase-ua", "--for", "Erased")

    (printed,) = reader.follows("docs/erasure.md", "lethe erasures list main.air.flights")

    assert re.search(r"main.air.flights: \d erasures?: no problems", printed), printed


def test_a_backup_begins_with_a_pause(reader: Reader) -> None:
    assert reader.shell("lethe track main.air.flights", {}).returncode == 0  # what the next run would do

    reader.follows(
        "docs/backup-and-restore.md",
        "lethe.dev/paused=true",
        "lethe ledger verify main.air.flights",
        "lethe.dev/paused-\n",
    )


def test_troubleshooting(reader: Reader) -> None:
    reader.follows("docs/troubleshooting.md", "kubectl lethe why dataset/flights")


def test_runbooks(reader: Reader) -> None:
    """What reads Lethe's own resources; the other commands are about pods of a cluster."""
    page = "docs/runbooks.md"
    blocks = [b for b in blocks_of(page, (ROOT / page).read_text()) if b.language in SHELLS]
    variables = {"NS": "default", "DATASET": "flights", "RESTATEMENT": "revert-blizzard", "POLICY": "nightly"}
    own = re.compile(r"kubectl (lethe (why|runs)|(get|describe) (dataset|restatement|vacuumpolicie)s?) ")
    ran = [line for b in blocks for line in script(b).splitlines() if own.match(line)]

    for line in ran:
        done = reader.shell(line, variables)
        assert done.returncode == 0, f"{line}\n{done.stdout}"

    assert len(ran) >= 20


def test_an_adopted_table(reader: Reader) -> None:
    dataset = yaml.safe_dump(a_dataset("flights", reader.lake.buffer / "flights"))
    (reader.work / "dataset.yaml").write_text(dataset)

    reader.follows("docs/adopt-a-table.md", "kubectl apply -f dataset.yaml")


def test_a_plan(reader: Reader) -> None:
    """Without kustomize and without installing anything."""
    (reader.work / "lake").mkdir()
    dataset = a_dataset("flights", reader.lake.buffer / "flights")
    (reader.work / "lake" / "dataset.yaml").write_text(yaml.safe_dump(dataset))
    block = chosen(list(blocks_of("docs/plan.md", (ROOT / "docs/plan.md").read_text())), "lethe plan -f lake/")
    (line,) = [line for line in block.text.splitlines() if line.startswith("lethe plan")]

    done = reader.shell(line, {})

    assert done.returncode == 0, done.stdout


def test_the_gateway(reader: Reader) -> None:
    """Each request is answered, if only by a problem: the page asks for batches that this lake does not have. Local files have no
    URLs for curl to upload to."""
    write_batch(reader.work / "2026-03-03", "passenger", [("gus", 10)])
    variables = {"G": reader.gateway, "TOKEN": reader.token(), "AUTH": f"Authorization: Bearer {reader.token()}"}
    page = "docs/gateway.md"
    blocks = list(blocks_of(page, (ROOT / page).read_text()))
    first, *requests = chosen(blocks, "$G/v1/namespaces/default/changes").text.splitlines()
    assert first.startswith("G=https://")  # what the variables are here

    for request in requests:
        if "/changes" not in request:  # a stream
            done = reader.shell(request.replace("curl ", "curl -sS "), variables)
            assert done.stdout.startswith("{"), f"{request}\n{done.stdout}"
    reader.follows(page, "lethe put flights ./2026-03-03", **variables)
    (client,) = [b.text for b in blocks if "lethe.GatewayClient" in b.text]
    here = client.replace("https://lethe-gateway.example.org", reader.gateway)
    printed = reader.shell(f'{sys.executable} -c "$SCRIPT"', {"SCRIPT": f"token = {reader.token()!r}\n{here}"})
    assert printed.stdout.splitlines()[-1].startswith("Succeeded ['"), printed.stdout
    with lethe.GatewayClient(reader.gateway, reader.token()) as gateway:
        wait_until(lambda: gateway.batch("flights", "2026-03-03")["history"][-1]["type"] == "Reverted", 60)
        reverted = gateway.batch("flights", "2026-03-03")["history"][-1]["restatement"]
    assert reverted["reason"] == "sent twice"


def test_leaving(reader: Reader) -> None:
    """The last: it deletes the Dataset."""
    reader.follows("docs/vacuum.md", 'lethe.dev/vacuum-now="$(date -Is)"')
    printed = reader.follows(
        "docs/upgrade.md",
        "kubectl get datasets,restatements,vacuumpolicies",
        "-o jsonpath='{.status.buffer}'",
        "lethe ledger show main.air.flights",
        "kubectl delete restatements --all",
    )

    assert re.search(r"tombstones\S* +0\b", printed[2]), printed[2]
