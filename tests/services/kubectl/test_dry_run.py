"""`--dry-run` of each verb changes nothing, and prints what `lethe plan` prints for the same change."""

import json
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from lethe.base import names
from lethe.cli.main import COMMANDS, cli
from lethe.contract.kubernetes import VACUUM_NOW
from lethe.kube import (
    DATASETS,
    RESTATEMENTS,
    SECRETS,
    VACUUM_POLICIES,
    Kube,
    RequestRefused,
    ResourceKind,
)
from lethe_kubectl import dry_run
from lethe_local.cli import local as local_commands

from tests.services.kubectl.conftest import LocalApi
from tests.support.builders import a_batch
from tests.support.documents import resource
from tests.support.tables import commit_delta, tombstone
from tests.tables.lethe.cli.conftest import Kept

CHANGING = (
    *("approve", "erase", "put", "redact", "replay", "revert", "track", "undo", "vacuum-now"),
    *("local apply", "local delete"),
)
READING = {
    "batches",
    "cost",
    "doctor",
    "erasures",
    "get",
    "history",
    "ledger",
    "logs",
    "plan",
    "read",
    "report",
    "runs",
    "status",
    "why",
}
OF_THIS_MACHINE = {"demo", "jars", "local"}
KINDS = (DATASETS, RESTATEMENTS, VACUUM_POLICIES, SECRETS)


@pytest.fixture
def lake(local: LocalApi, kept: Kept) -> LocalApi:
    """A Dataset of a table with the batches A, B and C, of which C is reverted and may be purged, and a policy."""
    with kept.table.transaction() as change:
        change.set_properties({names.CLAIM: "default/flights"})
    for batch in "ABC":
        kept.append(batch)
    commit_delta(
        kept.table,
        set_batches=tuple(a_batch(i, rows=1) for i in "ABC"),
        add_tombstones=(tombstone(kept.table, "C"),),
    )
    identities = [{"name": "customer", "column": "v"}]
    local.dataset("flights", table={"catalog": "local", "name": "air.flights", "adopt": True}, identities=identities)
    policy = {"datasetSelector": {}, "triggers": {"activeTombstones": 100}}
    local.kube.create(VACUUM_POLICIES, "default", resource("VacuumPolicy", "nightly", policy))
    waiting = resource(
        "Restatement", "waiting", {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchIds": ["B"]}
    )
    local.kube.create(RESTATEMENTS, "default", waiting)
    return local


def everything(local: LocalApi) -> Any:
    return [local.kube.list(kind, "default") for kind in KINDS]


def test_each_command_that_changes_something_has_a_dry_run() -> None:
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in COMMANDS}
    found |= {f"local {name}": command for name, command in local_commands.commands.items()}

    with_it = {n for n, c in found.items() if c is not None and any(p.name == "dry_run" for p in c.params)}

    assert with_it == set(CHANGING)
    assert COMMANDS.keys() - with_it == READING | OF_THIS_MACHINE


VERBS = {
    "revert": ("revert", "flights", "A", "B", "--evict-by-seconds", "60"),
    "erase": ("erase", "flights", "A"),
    "erase records": ("erase", "flights", "--column", "v", "--values-from", "s/k"),
    "erase a subject": ("erase", "--everywhere", "--subject", "customer", "--values-from", "s/k"),
    "redact": ("redact", "flights", "A", "--set", "v=constant:0"),
    "redact records": ("redact", "flights", "--column", "v", "--values-from", "s/k", "--set", "v=null"),
    "replay": ("replay", "flights", "A", "--with", "A2", "--uri", "file:///nowhere"),
    "undo": ("undo", "waiting"),
}


@pytest.mark.parametrize("arguments", VERBS.values(), ids=VERBS)
def test_a_verb_prints_the_plan_of_its_manifest(lake: LocalApi, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    manifest = lake.lethe(*arguments, "-o", "yaml").stdout
    (tmp_path / "r.yaml").write_text(manifest)
    before = everything(lake)

    dry = lake.lethe(*arguments, "--dry-run")
    plan = lake.lethe("plan", "-f", str(tmp_path / "r.yaml"))

    assert (dry.exit_code, dry.stdout.replace("the command line", "F")) == (
        plan.exit_code,
        plan.stdout.replace(str(tmp_path / "r.yaml"), "F"),
    )
    assert everything(lake) == before
    assert f"restatement/{yaml.safe_load(manifest)['metadata']['name']}" in dry.stdout


def test_the_plan_has_batches_rows_files_deadlines_and_who_else_is_affected(lake: LocalApi) -> None:
    dry = lake.lethe(*VERBS["revert"], "--dry-run").stdout

    assert "2 in the table" in dry
    assert "2 deleted" in dry
    assert "2 files (" in dry
    assert "a vacuum of VacuumPolicy nightly drops 2 and rewrites at most 0 files" in dry
    assert "the bytes must be gone 60 seconds after the commit" in dry
    assert "restatement/waiting (Pending) names 1 batch of it, too" in dry


@pytest.mark.parametrize("verb", ["revert", "erase", "replay"])
def test_a_command_creates_no_restatement_of_a_batch_that_is_nowhere_unless_it_may(lake: LocalApi, verb: str) -> None:
    more = ("--with", "A2", "--uri", "file:///nowhere") if verb == "replay" else ()
    before = everything(lake)

    refused = lake.lethe(verb, "flights", "A", "AA", *more)
    after = everything(lake)
    allowed = lake.lethe(verb, "flights", "A", "AA", *more, "--allow-unknown", "--name", "allowed")

    assert (refused.exit_code, after) == (10, before), refused.output
    assert "UnknownBatches" in refused.output
    assert "1 of 2 batch ids are in neither the table nor the buffer: 'AA' (similar: 'A')" in refused.output
    assert allowed.exit_code == 0, allowed.output
    assert lake.kube.get(RESTATEMENTS, "default", "allowed")["spec"]["unknownBatches"] == "Allow"


def test_a_command_creates_what_it_cannot_check(lake: LocalApi) -> None:
    """The run checks it. Here the catalog is not one of this machine."""
    lake.dataset("elsewhere", table={"catalog": "prod", "name": "air.elsewhere"})

    created = lake.lethe("revert", "elsewhere", "anything", "--name", "unchecked")

    assert created.exit_code == 0, created.output
    assert lake.kube.get(RESTATEMENTS, "default", "unchecked")["spec"]["batchIds"] == ["anything"]


def test_a_command_of_somebody_who_may_only_create_restatements_is_not_refused(
    lake: LocalApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look for the batches takes more rights than to create a Restatement."""

    def forbidden(_: Kube, kind: ResourceKind, *__: Any) -> Any:
        raise RequestRefused(403, "Forbidden", f"GET: {kind.name} is forbidden")

    monkeypatch.setattr(Kube, "list", forbidden)

    created = lake.lethe("revert", "flights", "AA", "--name", "unchecked")

    assert created.exit_code == 0, created.output
    assert lake.kube.get(RESTATEMENTS, "default", "unchecked")["spec"]["batchIds"] == ["AA"]


def test_the_values_of_an_erase_are_neither_stored_nor_printed(lake: LocalApi) -> None:
    before = everything(lake)

    dry = lake.lethe("erase", "flights", "--column", "v", "--values", "-", "--dry-run", told="31337\n")

    assert (dry.exit_code, "31337" in dry.output, everything(lake)) == (0, False, before), dry.output
    assert "only the run reads the values" in dry.stdout


def test_vacuum_now_prints_what_the_vacuum_would_purge(lake: LocalApi, tmp_path: Path) -> None:
    before = everything(lake)
    dataset = dict(lake.kube.get(DATASETS, "default", "flights"))
    dataset["metadata"] = {"name": "flights", "annotations": {VACUUM_NOW: "2026-03-01T12:00:00Z"}}
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({k: v for k, v in dataset.items() if k != "status"}))

    dry = lake.lethe("vacuum-now", "flights", "--dry-run")
    plan = lake.lethe("plan", "-f", str(tmp_path / "d.yaml"), "-o", "json")

    assert (dry.exit_code, everything(lake)) == (0, before), dry.output
    assert (
        "A vacuum starts. A vacuum now rewrites at most 0 files (0), drops 1 file and purges 1 row of 1 tombstone."
        in dry.stdout
    )
    vacuum = json.loads(plan.stdout)["resources"][0]["effect"]["vacuum"]
    assert (vacuum["starts"], vacuum["plan"]["wholeFiles"], vacuum["plan"]["tombstones"]) == (True, 1, 1)


def test_a_vacuum_of_named_batches_is_planned_for_these_only(lake: LocalApi) -> None:
    assert "purges" in lake.lethe("vacuum-now", "flights", "--batch", "C", "--dry-run").stdout
    assert "There is nothing to purge." in lake.lethe("vacuum-now", "flights", "--batch", "A", "--dry-run").stdout


def test_approve_prints_the_plan_and_asks_nothing(lake: LocalApi) -> None:
    vacuum = {"decision": "NeedsApproval", "plan": {"digest": "abc"}, "message": "The plan applies 1 tombstones."}
    lake.kube.patch(DATASETS, "default", "flights", {"status": {"vacuum": vacuum}}, "status")
    before = everything(lake)

    dry = lake.lethe("approve", "flights", "--dry-run")

    assert (dry.exit_code, everything(lake)) == (0, before), dry.output
    assert "metadata.annotations.lethe.dev/approve  (none) -> abc" in dry.stdout


def test_put_prints_what_the_dataset_would_do_with_one_more_batch(lake: LocalApi, tmp_path: Path) -> None:
    folder = tmp_path / "D"
    folder.mkdir()
    pq.write_table(pa.table({"v": pa.array([1], pa.int64())}), folder / "p.parquet")

    dry = lake.lethe("put", "flights", str(folder), "--dry-run")

    assert dry.exit_code == 0, dry.output
    assert "dataset/flights batch D put (dry run): 1 files" in dry.stdout
    assert "1 batch (" in dry.stdout
    assert "1 of 100 batches" in dry.stdout
    assert not (lake.folder.path / "buffer").exists()


def test_local_apply_prints_the_plan_of_its_files(lake: LocalApi, tmp_path: Path) -> None:
    dataset = {k: v for k, v in lake.kube.get(DATASETS, "default", "flights").items() if k != "status"}
    dataset["metadata"] = {"name": "flights"}
    dataset["spec"]["consolidation"]["minBatches"] = 7
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(dataset))
    before = everything(lake)

    dry = lake.lethe("local", "apply", "-f", str(tmp_path / "d.yaml"), "--dry-run")

    assert (dry.exit_code, dry.stdout) == (0, lake.lethe("plan", "-f", str(tmp_path / "d.yaml")).stdout), dry.output
    assert "spec.consolidation.minBatches" in dry.stdout
    assert everything(lake) == before


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (("dataset", "flights"), "local.air.flights stays, with its ledger"),
        (("vacuumpolicy", "nightly"), "dataset/flights  no VacuumPolicy applies to it"),
        (("restatement", "waiting"), "it is Pending: it is not carried out"),
    ],
)
def test_local_delete_prints_what_stays(lake: LocalApi, what: tuple[str, str], said: str) -> None:
    before = everything(lake)

    dry = lake.lethe("local", "delete", *what, "--dry-run")

    assert (dry.exit_code, everything(lake)) == (0, before), dry.output
    assert said in dry.stdout
    assert dry.stdout.endswith("0 to create, 0 to change, 1 to delete, 0 unchanged\n")


def test_without_the_packages_of_plan_the_server_has_checked_it(
    lake: LocalApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "_PLAN", "lethe_plan.nowhere")

    dry = lake.lethe(*VERBS["revert"], "--dry-run")

    assert (dry.exit_code, dry.stdout) == (0, "")
    assert "lethe: the server would accept it. Its effects need lethe_plan.nowhere" in dry.stderr
