"""What a plan says about tables: a real table and a real buffer, on SQLite and local files, and an API server in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base import names
from lethe.kube import CONFIG_MAPS, DATASETS, RESTATEMENTS, VACUUM_POLICIES, RequestRefused
from lethe.ledger.ledger import BatchState
from lethe_kubectl.errors import ResourcePlace
from lethe_kubectl.target import Connection
from lethe_local.admission import admitted
from lethe_local.api.objects import kinds
from lethe_local.api.patches import applied
from lethe_plan.changes import (
    ApplyTarget,
    Planned,
    change_of,
    changes_something,
    document,
    has_problems,
    manifests,
    rows,
    summary,
)
from lethe_plan.effects import PlannedEffects
from pyiceberg.catalog import Catalog
from pyiceberg.types import UUIDType

from tests.support import tables
from tests.support.builders import a_batch
from tests.support.documents import Document, resource
from tests.support.fake_cluster import FakeCluster

DEFINITIONS = {k.definition.kind: k.definition for k in kinds() if k.definition is not None}
RESOURCES = {"Dataset": DATASETS, "Restatement": RESTATEMENTS, "VacuumPolicy": VACUUM_POLICIES}
PLACE = ResourcePlace("context tests", "https://127.0.0.1:1", "ns", "kubectl", "lethe {}")


class Lake:
    """A table with the batches A (3 rows), B (2 rows) and the foreign X (1 row) in three files, and one batch in the buffer."""

    def __init__(self, home: Path, catalog: Catalog) -> None:
        self.home, self.catalog, self.cluster = home, catalog, FakeCluster()
        self.table = tables.new_table(catalog, **{names.CLAIM: "ns/flights"})
        for batch, count in (("A", 3), ("B", 2), ("X", 1)):
            self.table.append(tables.rows(*[batch] * count))
        tables.commit(self.table, a_batch("A", rows=3), a_batch("B", rows=2))
        self.put("W", v=pa.array([1], pa.int64()))
        self.apply(self.dataset())

    def put(self, batch: str, **columns: pa.Array) -> None:
        self.write(self.home / "buffer" / f"batch_id={batch}", **columns)

    def write(self, folder: Path, **columns: pa.Array) -> None:
        """A batch of one file."""
        folder.mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / "p.parquet")
        (folder / names.SUCCESS_MARKER).touch()

    def dataset(self, **spec: Any) -> Document:
        own = {
            "table": {"catalog": "lite", "name": "air.flights"},
            "batchColumn": "batch_id",
            "buffer": {"uri": f"file://{self.home}/buffer"},
        }
        return resource("Dataset", "flights", {**own, **spec}, labels={"tier": "gold"})

    def apply(self, body: Document, **status: Any) -> None:
        """The resource is in the cluster."""
        stored = admitted(DEFINITIONS[body["kind"]], applied(body))
        metadata = {**stored["metadata"], "namespace": "ns", "uid": f"u-{body['metadata']['name']}"}
        created = {"creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
        kind = RESOURCES[body["kind"]]
        self.cluster.objects.pop((kind.name, "ns", body["metadata"]["name"]), None)
        self.cluster.create(kind, "ns", {**stored, "metadata": {**metadata, **created}, "status": status})

    def plan(self, *documents: Document) -> list[Planned]:
        found = manifests([(f"{n}.yaml", d) for n, d in enumerate(documents)], DEFINITIONS, ApplyTarget("ns"))
        changes = [change_of(m, self._current(m.kind, m.name)) for m in found.manifests]
        effects = PlannedEffects(Connection(self.cluster, PLACE), changes, found.config_maps)  # type: ignore[arg-type]
        return [Planned(c, effects.of(c)) for c in changes]

    def effect(self, body: Document) -> Planned:
        (planned,) = self.plan(body)
        return planned

    def _current(self, kind: str, name: str) -> Document | None:
        return self.cluster.objects.get((RESOURCES[kind].name, "ns", name)) if kind in RESOURCES else None


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path / "home"))
    home = tmp_path / "home"
    return Lake(home, tables.catalog_in(home))


def a_revert(*batches: str, name: str = "fix", operation: str = "Revert", **spec: Any) -> Document:
    ids = {"batchIds": list(batches)} if batches else {}
    return resource("Restatement", name, {"datasetRef": {"name": "flights"}, "operation": operation, **ids, **spec})


def lines(planned: Planned) -> dict[str, str]:
    return dict(planned.effect.lines)


def test_a_revert_names_its_batches_rows_files_and_the_missing_vacuum(lake: Lake) -> None:
    planned = lake.effect(a_revert("A", "W", "nowhere", unknownBatches="Allow"))

    assert (planned.problem, planned.effect.unknown) == ("", "")
    said = lines(planned)
    assert said["batches"] == "1 in the table, 1 waits in the buffer and will not be promoted, 1 unknown: nowhere"
    assert said["rows"] == "3 deleted"
    assert said["files"].startswith("1 file (")
    assert said["files"].endswith("may contain these rows, 1 of them only these")
    assert "no VacuumPolicy selects the Dataset" in said["vacuum"]
    assert planned.effect.deleted is not None
    assert planned.effect.deleted.batches == {("lite.air.flights", "A"): 3}
    assert len(planned.effect.deleted.files) == 1


def test_a_restatement_of_a_batch_that_is_nowhere_would_be_refused(lake: Lake) -> None:
    """The buffer knows W, incomplete batches, and what another Restatement brings."""
    (lake.home / "buffer" / "batch_id=unfinished").mkdir()
    (lake.home / "buffer" / "batch_id=unfinished" / "p.parquet").touch()
    lake.write(lake.home / "fixed", v=pa.array([1], pa.int64()))
    replacement = {"batchId": "A2", "uri": f"file://{lake.home}/fixed"}
    replay = a_revert("A", name="replay", operation="Replay", replacement=replacement)

    planned, first, second = lake.plan(a_revert("A", "AA"), replay, a_revert("A2", "unfinished", "W", "X", name="more"))

    assert planned.problem.startswith(
        "UnknownBatches: Restatement ns/fix: 1 of 2 batch ids are in neither the table nor the"
    )
    assert "'AA' (similar: 'A')" in planned.problem
    assert (first.problem, second.problem) == ("", "")


def test_rows_that_another_writer_added_are_found_and_their_number_is_unknown(lake: Lake) -> None:
    planned = lake.effect(a_revert("X"))

    assert lines(planned)["batches"] == "1 in the table"
    assert "how many rows X has" in planned.effect.unknown


@pytest.mark.parametrize("rows", [True, False])
def test_a_table_whose_files_must_not_be_deleted_cannot_complete_an_erasure(lake: Lake, rows: bool) -> None:
    with lake.table.transaction() as change:
        change.set_properties({"gc.enabled": "FALSE"})
    ref = {"column": "v", "valuesFrom": {"secretKeyRef": {"name": "erase-people", "key": "k"}}}

    erase = lake.effect(a_revert(*([] if rows else ["A"]), operation="Erase", **({"rows": ref} if rows else {})))
    revert = lake.effect(a_revert("A"))

    assert "the table property gc.enabled is not true" in lines(erase)["blocked"]
    assert "blocked" not in lines(revert)


def test_a_policy_of_the_same_plan_vacuums_what_a_revert_deletes(lake: Lake) -> None:
    policy = resource("VacuumPolicy", "nightly", {"datasetSelector": {}, "triggers": {"activeTombstones": 1}})

    revert, _ = lake.plan(a_revert("A", "B"), policy)

    assert lines(revert)["vacuum"] == "a vacuum of VacuumPolicy nightly drops 2 and rewrites at most 0 files"


def test_a_batch_that_was_replaced_cannot_be_replaced_again(lake: Lake) -> None:
    tables.commit(lake.table, a_batch("A", BatchState.REPLACED, rows=3, replaced_by="A2"))
    replacement = {"batchId": "A3", "uri": f"file://{lake.home}/fixed"}
    lake.write(lake.home / "fixed", v=pa.array([1], pa.int64()))

    planned = lake.effect(a_revert("A", operation="Replay", replacement=replacement))

    assert planned.problem.startswith("AlreadyReplaced: ")
    assert has_problems([planned])


def test_a_replay_says_what_it_adds_and_that_only_the_run_can_count(lake: Lake) -> None:
    replacement = {"batchId": "A2", "uri": f"file://{lake.home}/fixed"}
    lake.write(lake.home / "fixed", v=pa.array([1], pa.int64()))

    planned = lake.effect(a_revert("A", operation="Replay", replacement=replacement))

    assert lines(planned)["adds"].startswith("the rows of 1 file (")
    assert lines(planned)["adds"].endswith(f" in file://{lake.home}/fixed, as batch A2")
    assert "how many rows the replacement adds" in planned.effect.unknown
    assert planned.effect.deleted is not None
    assert planned.effect.deleted.rows == 3


@pytest.mark.parametrize(
    ("place", "reason"), [("nothing", "ReplacementIncomplete"), ("buffer/batch_id=A2", "ReplacementInBuffer")]
)
def test_a_replacement_without_its_marker_or_inside_the_buffer_is_a_problem(
    lake: Lake, place: str, reason: str
) -> None:
    replacement = {"batchId": "A2", "uri": f"file://{lake.home}/{place}"}

    planned = lake.effect(a_revert("A", operation="Replay", replacement=replacement))

    assert planned.problem.startswith(f"{reason}: ")


def test_the_values_of_an_erase_are_never_read(lake: Lake) -> None:
    source = {"secretKeyRef": {"name": "people", "key": "values"}}

    planned = lake.effect(a_revert(operation="Erase", rows={"column": "v", "valuesFrom": source}))

    assert "searches the column v of 3 files" in lines(planned)["rows"]
    assert "which rows are erased" in planned.effect.unknown
    assert planned.effect.deleted is None


def test_a_redact_says_which_rows_and_columns_and_what_it_may_not_change(lake: Lake) -> None:
    """Its batches are not deleted."""
    source = {"secretKeyRef": {"name": "people", "key": "values"}}
    redact = {"columns": [{"column": "v", "method": "SetNull"}]}
    of_batch = {"columns": [{"column": "batch_id", "method": "Constant", "value": "x"}]}

    whole = lake.effect(a_revert("A", operation="Redact", redact=redact))
    records = lake.effect(a_revert(operation="Redact", redact=redact, rows={"column": "v", "valuesFrom": source}))
    refused = lake.effect(a_revert("A", operation="Redact", redact=of_batch))

    assert lines(whole)["rows"] == "3 redacted: v (SetNull)"
    assert lines(whole)["batches"] == "1 in the table"
    assert whole.effect.deleted is None
    assert (lines(records)["redacts"], "which rows are redacted" in records.effect.unknown) == ("v (SetNull)", True)
    assert refused.problem.startswith("ColumnNotRedactable: Restatement ns/fix: spec.redact.columns names batch_id")


def test_a_column_that_cannot_be_searched_is_a_problem_before_a_run_says_so(lake: Lake) -> None:
    source = {"secretKeyRef": {"name": "people", "key": "values"}}
    replacement = {"batchId": "A2", "uri": f"file://{lake.home}/changes", "keyColumns": ["v.x"]}

    erase = lake.effect(a_revert(operation="Erase", rows={"column": "vv", "valuesFrom": source}))
    replay = lake.effect(a_revert(operation="Replay", replacement=replacement))

    assert erase.problem.startswith(
        "ColumnNotFound: Restatement ns/fix: spec.rows.column names vv, but lite.air.flights has no"
    )
    assert replay.problem.startswith(
        "ColumnNotFound: Restatement ns/fix: spec.replacement.keyColumns names v.x, but lite"
    )


def test_an_undo_of_a_restatement_that_does_not_exist_is_a_problem(lake: Lake) -> None:
    planned = lake.effect(a_revert(operation="Undo", undoes={"name": "gone"}))

    assert planned.problem.startswith("UndoneRestatementNotFound: ")


def test_an_undo_waits_for_a_revert_of_the_same_plan(lake: Lake) -> None:
    _, undo = lake.plan(a_revert("A"), a_revert(operation="Undo", name="undo", undoes={"name": "fix"}))

    assert "fix" in lines(undo)["waits"]
    assert undo.effect.unknown == "it depends on a Restatement that has not ended"


def test_a_dataset_that_does_not_exist_is_a_problem(lake: Lake) -> None:
    body = a_revert("A")
    body["spec"]["datasetRef"]["name"] = "flihgts"

    assert (
        "Dataset flihgts is neither in namespace ns nor in the files. There are flights." in lake.effect(body).problem
    )


def test_a_suspended_restatement_waits(lake: Lake) -> None:
    assert lines(lake.effect(a_revert("A", suspend=True)))["waits"].startswith("spec.suspend is true")


def test_a_restatement_of_a_paused_dataset_waits(lake: Lake) -> None:
    paused = lake.dataset()
    paused["metadata"]["annotations"] = {"lethe.dev/paused": "true"}

    revert, dataset = lake.plan(a_revert("A"), paused)

    assert lines(revert)["waits"].startswith("the annotation lethe.dev/paused")
    assert lines(dataset)["consolidation"] == "no run starts, because the annotation lethe.dev/paused is set"


def test_a_list_in_a_config_map_of_the_files_is_read(lake: Lake) -> None:
    listed = a_revert(batchIdsFrom={"configMapKeyRef": {"name": "ids", "key": "list"}})
    labels = {"lethe.dev/batch-ids": "true"}
    metadata = {"name": "ids", "labels": labels}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"list": "A\nB\n"}}

    (planned,) = lake.plan(listed, config_map)

    assert lines(planned)["batches"] == "2 in the table"
    assert CONFIG_MAPS.name not in {k for k, _, _ in lake.cluster.objects}


def test_without_the_right_to_read_a_config_map_the_list_is_unknown(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    get: Callable[..., Any] = lake.cluster.get

    def refusing(kind: Any, namespace: str, name: str) -> Any:
        if kind == CONFIG_MAPS:
            raise RequestRefused(403, "Forbidden", "GET: not allowed")
        return get(kind, namespace, name)

    monkeypatch.setattr(lake.cluster, "get", refusing)

    planned = lake.effect(a_revert(batchIdsFrom={"configMapKeyRef": {"name": "ids", "key": "list"}}))

    assert planned.problem == ""
    assert "you may not read the ConfigMap ids" in planned.effect.unknown


def test_a_catalog_that_this_machine_does_not_know_makes_figures_unknown(lake: Lake) -> None:
    table = {"catalog": "prod", "name": "air.flights"}
    body = lake.dataset(table=table)
    lake.apply(body, batches={"promoted": 7}, buffer={"batches": 2})

    revert, dataset = lake.plan(a_revert("A"), lake.dataset(table=table, consolidation={"minBatches": 1}))

    assert "the catalog prod is not in .pyiceberg.yaml of this machine" in revert.effect.unknown
    assert lines(dataset)["status"] == "the operator last saw 7 promoted and 2 waiting batches"
    assert not has_problems([revert, dataset])


def test_a_catalog_of_the_same_name_with_another_table_is_noticed(lake: Lake) -> None:
    lake.apply(lake.dataset(), table={"uuid": "another"})

    assert "the operator sees table another as air.flights" in lake.effect(a_revert("A")).effect.unknown


def test_a_dataset_whose_threshold_falls_starts_a_consolidation(lake: Lake) -> None:
    planned = lake.effect(lake.dataset(consolidation={"minBatches": 1}))

    said = lines(planned)
    assert said["buffer"].startswith("1 batch (")
    assert said["consolidation"] == "1 batches wait, minBatches is 1. A run starts."
    assert planned.change.fields[0].path == "spec.consolidation.minBatches"


def test_a_new_dataset_creates_its_table(lake: Lake) -> None:
    create = {"schema": "v BIGINT, batch_id STRING"}
    table = {"catalog": "lite", "name": "air.other", "create": create}
    body = resource(
        "Dataset",
        "other",
        {"table": table, "batchColumn": "batch_id", "buffer": {"uri": f"file://{lake.home}/other"}},
    )

    assert lines(lake.effect(body))["table"] == "the first run creates lite.air.other"


def test_a_dataset_on_the_table_of_another_one_is_a_problem(lake: Lake) -> None:
    body = lake.dataset()
    body["metadata"]["name"] = "thief"
    body["spec"]["buffer"] = {"uri": f"file://{lake.home}/other"}

    assert lake.effect(body).problem.startswith("TableClaimed: ")


def test_columns_that_schema_evolution_would_add_are_named(lake: Lake) -> None:
    with lake.table.update_schema() as update:
        update.add_column("key", UUIDType())  # which files have as text
    key = pa.array(["6f1f6a4e-0000-4000-8000-000000000001"])
    lake.put("W2", v=pa.array([1], pa.int64()), key=key, carrier=pa.array(["UA"]))

    planned = lake.effect(lake.dataset(schemaEvolution="AddColumns"))

    assert lines(planned)["columns"] == "adds or widens carrier (string)"


def test_a_policy_names_the_datasets_that_it_decides_for_and_what_a_vacuum_would_do(lake: Lake) -> None:
    tables.revert(lake.table, "A")
    gold = resource(
        "VacuumPolicy",
        "gold",
        {"datasetSelector": {"matchLabels": {"tier": "gold"}}, "triggers": {"activeTombstones": 1}},
    )
    lead = resource(
        "VacuumPolicy",
        "lead",
        {"datasetSelector": {"matchLabels": {"tier": "lead"}}, "triggers": {"activeTombstones": 1}},
    )

    of_gold, of_lead = lake.plan(gold, lead)

    said = lines(of_gold)["dataset/flights"]
    assert said.startswith("TooManyTombstones: 1 active tombstones, the limit is 1. A vacuum starts.")
    assert "rewrites at most 0 files (0), drops 1 file and purges 3 rows of 1 tombstone." in said
    assert lines(of_lead) == {"datasets": "it applies to no Dataset of the namespace"}


def test_a_policy_with_a_retention_says_first_what_is_too_old(lake: Lake) -> None:
    """The batches came long ago; the row of another writer has no known age."""
    rules = {"triggers": {}, "retention": {"by": "BatchAge", "maxAgeDays": 30}}
    policy = resource("VacuumPolicy", "month", {"datasetSelector": {}, **rules})

    said = lines(lake.effect(policy))["dataset/flights"]

    assert said.startswith("RowsTooOld: Rows with a time before ")
    before, dropped = said.split("A vacuum starts. ")[1].split(" are too old: ")
    assert before.startswith("Rows before ")
    assert (dropped.split(" (")[0], "5 rows). A vacuum now rewrites at most 0 files (0), drops 2 files" in dropped) == (
        "2 whole files",
        True,
    )


def test_a_policy_below_its_thresholds_waits(lake: Lake) -> None:
    tables.revert(lake.table, "A")
    policy = resource("VacuumPolicy", "gold", {"datasetSelector": {}, "triggers": {"activeTombstones": 9}})

    said = lines(lake.effect(policy))["dataset/flights"]

    assert said.startswith("BelowTriggers: 1 active tombstones, the limit is 9. A vacuum now ")


def test_a_policy_that_no_longer_selects_a_dataset_says_so(lake: Lake) -> None:
    spec: Document = {"datasetSelector": {}, "triggers": {"activeTombstones": 9}}
    lake.apply(resource("VacuumPolicy", "all", spec))

    planned = lake.effect(
        resource("VacuumPolicy", "all", {**spec, "datasetSelector": {"matchLabels": {"tier": "lead"}}})
    )

    assert lines(planned) == {"dataset/flights": "this policy no longer applies to it"}


def test_a_data_file_list_that_cannot_be_read_makes_figures_unknown(lake: Lake) -> None:
    """Such as a manifest that is missing in the storage."""
    for manifest in (lake.home / "wh").rglob("*-m0.avro"):
        manifest.unlink()

    planned = lake.effect(a_revert("A"))

    assert planned.problem == ""
    assert "the table or the buffer: FileNotFoundError" in planned.effect.unknown


def test_unchanged_resources_have_no_effect_and_no_table_is_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("a table was read")

    monkeypatch.setattr("lethe_plan.tables.Tables.of", fail)

    planned = lake.effect(lake.dataset())

    assert not changes_something([planned])
    assert summary([planned]) == "0 to create, 0 to change, 1 unchanged"


def test_the_report_adds_up_rows_batches_and_files(lake: Lake) -> None:
    """A batch that two Restatements name counts once."""
    planned = lake.plan(a_revert("A"), a_revert("A", "B", name="other"), lake.dataset(), a_revert(name="bad"))

    found = document(planned, others=2)

    assert (
        found["message"] == "2 to create, 0 to change, 1 unchanged, 1 refused; deletes 5 rows of 2 batches in 2 files"
    )
    assert (found["summary"]["deleted"]["rows"], found["otherDocuments"]) == (5, 2)
    assert [r["action"] for r in found["resources"]] == ["create", "create", "unchanged", "refused"]
    assert found["resources"][0]["effect"]["batches"]["inTable"] == ["A"]
    shown = list(rows(planned))
    assert shown[0][:2] == ["restatement/fix", "create"]
    assert ["dataset/flights", "unchanged", "", ""] in shown
