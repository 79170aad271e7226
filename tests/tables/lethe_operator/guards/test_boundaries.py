"""What lies outside the boundary of the namespace is refused by the operator; messages name the boundary and the value."""

from typing import Any, cast

import pytest
from lethe.contract.dataset import RunTemplate
from lethe.contract.kubernetes import GIB
from lethe.contract.run import AllowedOperation, ConsolidationSpec, RunKind
from lethe_operator.dataset.observe import Sources, observe
from lethe_operator.dataset.tables import TableReader
from lethe_operator.guards.preconditions import blocker
from lethe_operator.reconcile import utc_now
from lethe_operator.resources.boundaries import Boundaries, Boundary
from lethe_operator.resources.observed import AttemptState, NoTable, Unavailable
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement.observe import IdLists
from lethe_operator.runs.pod import within
from lethe_operator.settings import Settings

from tests.support.builders import NOW, a_ledger
from tests.support.fake_cluster import watched
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_policy,
    a_restatement,
    a_run,
    a_table,
    a_world,
    an_attempt,
    condition,
    message,
)
from tests.support.small_lake import SmallLake
from tests.support.statuses import decide

INSIDE: dict[str, Any] = {  # all that a_dataset() names, and where a_table() lies
    "catalogs": ["main"],
    "tables": ["air.*"],
    "uris": ["s3://lake/buffer", "s3://lake/warehouse", "s3a://lake/changes"],
    "queues": ["https://sqs.eu-west-1.amazonaws.com/123"],
    "topics": ["main/team-a.*"],
    "driver": {"cpu": 2, "memory": "4Gi", "scratch": "10Gi"},
    "executors": {"cpu": 4, "memory": "8Gi", "scratch": "10Gi", "max": 4},
}


def settings(**boundary: Any) -> Settings:
    """The boundary of the namespace `ns`; in other namespaces nothing is allowed."""
    nothing = Boundary.model_validate({"catalogs": []})
    return Settings(boundaries=Boundaries(default=nothing, namespaces={"ns": Boundary.model_validate(boundary)}))


def without(*operations: AllowedOperation) -> dict[str, Any]:
    return {"operations": [o for o in AllowedOperation if o not in operations]}


def table(**changes: Any) -> dict[str, Any]:
    return {"table": {"catalog": "main", "name": "air.flights", **changes}}


def template(**changes: Any) -> dict[str, Any]:
    return {"runTemplate": changes}


QUEUE = "https://sqs.eu-west-1.amazonaws.com/1234/q"


def events(url: str) -> dict[str, Any]:
    return {"buffer": {"uri": "s3://lake/buffer/flights", "events": {"type": "SQS", "queueUrl": url}}}


def topics(*names: str, cluster: str = "main") -> dict[str, Any]:
    return {"source": {"kafka": {"cluster": cluster, "topics": list(names), "format": "JSON"}}}


@pytest.mark.parametrize(
    ("boundary", "spec", "named", "value"),
    [
        ({"catalogs": ["other"]}, {}, "catalogs", "spec.table.catalog main"),
        ({"catalogs": []}, {}, "catalogs", "allows none"),
        ({"tables": ["sea.*", "air.f"]}, {}, "tables", "spec.table.name air.flights"),
        ({"uris": ["s3://lake/buf"]}, {}, "uris", "spec.buffer.uri s3://lake/buffer/flights"),
        ({"uris": ["s3://lake/buffer"]}, {"buffer": {"uri": "s3://lake/buffer/../x"}}, "uris", "s3://lake/buffer/../x"),
        ({"uris": ["s3://lake/buffer"]}, {"buffer": {"uri": "s3://lake/buffer/%2e%2e/x"}}, "uris", "%2e%2e"),
        (INSIDE, events(QUEUE), "queues", f"spec.buffer.events.queueUrl {QUEUE}"),
        (INSIDE, topics("team-a.orders", "team-b.orders"), "topics", "spec.source.kafka.topics main/team-b.orders"),
        (INSIDE, topics("team-a.orders", cluster="other"), "topics", "spec.source.kafka.topics other/team-a.orders"),
        ({"topics": []}, topics("team-a.orders"), "topics", "allows none"),
        (without(AllowedOperation.REGISTER), {"consolidation": {"mode": "Register"}}, "operations", "Register"),
        (without(AllowedOperation.NATIVE_DELETES), {"deletes": "DeletionVectors"}, "operations", "NativeDeletes"),
        (without(AllowedOperation.ADOPT_TABLE), table(adopt=True), "operations", "AdoptTable"),
        (without(AllowedOperation.CREATE_TABLE), table(create={"schema": "id INT"}), "operations", "CreateTable"),
        (
            INSIDE,
            table(create={"schema": "id INT", "properties": {"write.data.path": "s3://lake/x"}}),
            "uris",
            "spec.table.create.properties write.data.path s3://lake/x",
        ),
        (INSIDE, template(driver={"cpu": 3}), "driver.cpu", "spec.runTemplate.driver.cpu 3"),
        (INSIDE, template(driver={"memory": "5Gi"}), "driver.memory", "spec.runTemplate.driver.memory 5Gi"),
        (INSIDE, template(driver={"scratch": "11Gi"}), "driver.scratch", "spec.runTemplate.driver.scratch 11Gi"),
        (INSIDE, template(executors={"memory": "9Gi"}), "executors.memory", "spec.runTemplate.executors.memory 9Gi"),
        (INSIDE, template(executors={"max": 5}), "executors.max", "spec.runTemplate.executors.max 5"),
        (INSIDE, template(executors={"min": 5, "max": 6}), "executors.max", "spec.runTemplate.executors.min 5"),
    ],
)
def test_a_dataset_outside_is_stalled(boundary: dict[str, Any], spec: dict[str, Any], named: str, value: str) -> None:
    dataset, asked = a_dataset(**spec), settings(**boundary)
    # A world that would do otherwise, so that nothing else is in the way.
    seen = a_world(a_buffered("A"), table=NoTable() if "create" in str(spec) else a_table(format_version=3))

    actions = decide(dataset, seen, NOW, asked)

    assert condition(actions.dataset_status, "Stalled") == ("True", "OutsideBoundary")
    assert f"the boundary {named} of namespace ns" in message(actions.dataset_status, "Stalled")
    assert value in message(actions.dataset_status, "Stalled")
    assert actions.launches == ()
    assert blocker(dataset, seen, SETTINGS) is None


@pytest.mark.parametrize(
    "spec",
    [
        {},
        events("https://sqs.eu-west-1.amazonaws.com/123/q"),
        table(adopt=True, create={"schema": "id INT", "properties": {"write.data.path": "s3a://lake/warehouse/x"}}),
        {"consolidation": {"mode": "Register"}, "deletes": "DeletionVectors"},
        template(driver={"cpu": 2, "memory": "4Gi"}, executors={"min": 1, "max": 4}),
    ],
)
def test_a_dataset_inside_is_not(spec: dict[str, Any]) -> None:
    assert blocker(a_dataset(**spec), a_world(table=a_table(format_version=3)), settings(**INSIDE)) is None


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"location": "s3://lake/elsewhere/flights"}, "the table's location s3://lake/elsewhere/flights"),
        ({"write_paths": {"write.data.path": "s3://other/x"}}, "the table property write.data.path s3://other/x"),
        (
            {"write_paths": {"write.metadata.path": "s3://other/x"}},
            "the table property write.metadata.path s3://other/x",
        ),
    ],
)
def test_a_table_outside_the_boundary_stalls_its_dataset(changes: dict[str, Any], value: str) -> None:
    found = blocker(a_dataset(), a_world(table=a_table(**changes)), settings(**INSIDE))

    assert found is not None
    assert (found.reason, found.transient) == ("OutsideBoundary", False)
    assert f"{value} is outside the boundary uris of namespace ns" in found.message


def test_a_dataset_of_another_namespace_has_that_one_s_boundary() -> None:
    dataset = a_dataset(meta={"namespace": "other"})

    found = blocker(dataset, a_world(), settings(**INSIDE))

    assert found is not None
    assert "spec.table.catalog main is outside the boundary catalogs of namespace other" in found.message


def listed(uri: str) -> Restatement:
    return a_restatement("r", batchIds=[], batchIdsFrom={"uri": uri})


def replayed(uri: str) -> Restatement:
    return a_restatement("r", operation="Replay", replacement={"batchId": "n", "uri": uri})


@pytest.mark.parametrize(
    ("boundary", "restatement", "named", "value"),
    [
        (INSIDE, listed("s3://lake/ids.txt"), "uris", "spec.batchIdsFrom.uri s3://lake/ids.txt"),
        (INSIDE, listed("s3://lake/changes/../ids.txt"), "uris", "s3://lake/changes/../ids.txt"),
        (INSIDE, listed("file:///etc/passwd"), "uris", "file:///etc/passwd"),
        (INSIDE, replayed("s3://lake/changesets/n"), "uris", "spec.replacement.uri s3://lake/changesets/n"),
        (without(AllowedOperation.REVERT), a_restatement("r"), "operations", "spec.operation Revert"),
        (without(AllowedOperation.REPLAY), replayed("s3://lake/changes/n"), "operations", "spec.operation Replay"),
        (without(AllowedOperation.ERASE), a_restatement("r", operation="Erase"), "operations", "spec.operation Erase"),
        (
            without(AllowedOperation.UNDO),
            a_restatement("r", operation="Undo", batchIds=[], undoes={"name": "x"}),
            "operations",
            "spec.operation Undo",
        ),
    ],
)
def test_a_restatement_outside_is_stalled_and_the_dataset_goes_on(
    boundary: dict[str, Any], restatement: Restatement, named: str, value: str
) -> None:
    seen = a_world(a_buffered("B", age_seconds=900), table=a_table(a_ledger("A")), restatements=(restatement,))

    actions = decide(a_dataset(), seen, NOW, settings(**boundary))

    status = actions.restatement_statuses["r"]
    assert condition(status, "Stalled") == ("True", "OutsideBoundary")
    assert value in message(status, "Stalled")
    assert f"the boundary {named} of namespace ns" in message(status, "Stalled")
    assert [x.run.kind for x in actions.launches] == [RunKind.CONSOLIDATION]


@pytest.mark.parametrize("restatement", [listed("s3://lake/changes/ids.txt"), replayed("s3://lake/changes/n")])
def test_a_restatement_inside_is_carried_out(restatement: Restatement) -> None:
    seen = a_world(table=a_table(a_ledger("A")), restatements=(restatement,))

    (launch,) = decide(a_dataset(), seen, NOW, settings(**INSIDE)).launches

    assert launch.run.boundary is not None
    assert launch.run.boundary.uris == tuple(INSIDE["uris"])


def test_a_vacuum_that_is_withheld_does_not_start_and_its_policy_names_the_boundary() -> None:
    seen = a_world(table=a_table(a_ledger("A", "B", "C", "D")), policies=(a_policy(),))

    allowed = decide(a_dataset(), seen, NOW, settings(**INSIDE))
    withheld = decide(a_dataset(), seen, NOW, settings(**without(AllowedOperation.VACUUM)))

    assert [x.run.kind for x in allowed.launches] == [RunKind.VACUUM]
    assert withheld.launches == ()
    assert withheld.policy_entries["air"]["reason"] == "OutsideBoundary"
    assert "the boundary operations of namespace ns" in withheld.policy_entries["air"]["message"]


def test_a_policy_whose_retention_is_withheld_starts_no_vacuum_and_another_does() -> None:
    """It would remove rows that the namespace may not revert."""
    table = a_table(a_ledger("A", "B", "C", "D"))
    retaining = a_policy(retention={"column": "t", "maxAgeDays": 1})
    limits = settings(**without(AllowedOperation.RETENTION))

    withheld = decide(a_dataset(), a_world(table=table, policies=(retaining,)), NOW, limits)
    allowed = decide(a_dataset(), a_world(table=table, policies=(a_policy(),)), NOW, limits)

    assert withheld.launches == ()
    assert withheld.policy_entries["air"]["reason"] == "OutsideBoundary"
    assert "Retention" in withheld.policy_entries["air"]["message"]
    assert [x.run.kind for x in allowed.launches] == [RunKind.VACUUM]


def test_a_run_is_started_again_with_the_boundary_of_today() -> None:
    """Its intent was stored before the administrator changed the boundary."""
    batch = a_buffered("A", age_seconds=900)
    spec = a_consolidation(batch)
    failed = an_attempt(spec, AttemptState.FAILED, exit_code=20, finished_seconds=600)
    seen = a_world(batch, runs=(a_run(spec, failed),))

    (launch,) = decide(a_dataset(), seen, NOW, settings(**INSIDE)).launches

    assert isinstance(launch.run.consolidation, ConsolidationSpec)
    assert (launch.run.run_id, launch.run.attempt) == (spec.run_id, 2)
    assert spec.boundary is None
    assert launch.run.boundary is not None


class _Untouched:
    """The tables of a Dataset whose table, buffer and queue must not be looked at."""

    documents = None  # no run has one

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def forget(self, dataset: str) -> None:
        self.forgotten.append(dataset)


def test_nothing_of_a_dataset_outside_its_boundary_is_read(bare: SmallLake) -> None:
    """Authors of Datasets must not learn with the operator's credentials what is outside their boundary."""
    asked, tables = settings(uris=["s3://lake"]), _Untouched()

    sources = Sources(cast(Any, bare.cluster), watched(bare.cluster), cast(TableReader, tables), IdLists(), asked)

    found = observe(sources, "ns", "flights", utc_now())

    assert isinstance(found.world.table, Unavailable)
    assert found.world.table.reason == "OutsideBoundary"
    assert tables.forgotten == ["ns/flights"]


def test_defaults_are_cut_to_the_boundary() -> None:
    """A Dataset that asks for no size is not refused for the defaults of the chart."""
    boundary = Boundary.model_validate(
        {"driver": {"cpu": 0.5, "memory": "1Gi"}, "executors": {"max": 1, "scratch": "2Gi"}}
    )
    chart = RunTemplate.model_validate({"driver": {"cpu": 2, "memory": "6Gi"}, "executors": {"min": 2, "max": 9}})

    found = within(chart, boundary)

    assert (found.driver.cpu, found.driver.memory, found.driver.scratch) == (0.5, GIB, chart.driver.scratch)
    assert (found.executors.min, found.executors.max, found.executors.scratch) == (1, 1, 2 * GIB)
    assert within(chart, Boundary()) == chart
