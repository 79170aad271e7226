"""The committer carries out what needs no Spark: a process with a small JVM, on real catalogs, told by ConfigMaps.

Tables are made by Spark in this process; the committer has none.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import lethe
import pytest
from lethe.base import names
from lethe.contract.run import AllowedOperation, ResultPointer, RunBoundary, RunSpec, SnapshotLimits, TableRef
from lethe.iceberg import catalogs
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import SparkSession

from tests.spark.support.mailbox import BOX, Namespace, Process, serving
from tests.spark.support.story import Row, Story, local, of_arrow, of_batches
from tests.support import api_server
from tests.support.api_server import ApiServer
from tests.support.builders import a_request
from tests.support.lake import CATALOG, Lake
from tests.support.servers import s3

ALL = ("A", "B", "C")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server.running(tmp_path_factory.mktemp("account")) as running:
        yield running


@pytest.fixture(scope="module")
def namespace(server: ApiServer) -> Namespace:
    return Namespace.make(server)


@pytest.fixture(scope="module")
def process(
    namespace: Namespace, lake: Lake, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """One committer for this module; the session is there first, and with it the SQL catalog's tables."""
    _ = spark
    with serving(namespace.server, lake, tmp_path_factory.mktemp("committer") / "log") as running:
        yield running


@pytest.fixture
def story(spark: SparkSession, lake: Lake, process: Process) -> Story:
    """A, B and C are in the table."""
    assert process.is_up()
    return begun(Story.begin(spark, lake))


def begun(story: Story) -> Story:
    story.put(*ALL)
    story.consolidate(*ALL)
    return story


def a_revert(story: Story, *batch_ids: str, name: str = "revert", **changes: object) -> RunSpec:
    return story.restatement(a_request(name, batch_ids=batch_ids), **changes)


def an_undo(story: Story, of: str = "revert", name: str = "undo") -> RunSpec:
    return story.restatement(a_request(name, "Undo", batch_ids=(), undoes=f"ns/{of}/0"))


# --- what it does -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("catalog", [CATALOG, "pg", "rest"])
@pytest.mark.parametrize("format_version", [2, 3])
def test_a_group_is_carried_out_in_one_commit_on_every_catalog_and_format(
    spark: SparkSession,
    lake: Lake,
    namespace: Namespace,
    process: Process,
    request: pytest.FixtureRequest,
    catalog: str,
    format_version: int,
) -> None:
    if catalog != CATALOG:
        request.getfixturevalue(catalog)
        make_session(catalog)
    story = begun(Story.begin(spark, lake, catalog=catalog, format_version=format_version))
    group = story.restatement(
        a_request("one", batch_ids=("A", "unheard-of")),
        a_request("two", batch_ids=("B",)),
        a_request("back", "Undo", batch_ids=(), undoes="ns/two/0"),
        a_request("wrong", "Undo", batch_ids=(), undoes="ns/never/0"),
    )

    result = namespace.carried_out(group)

    told = {r.name: (r.succeeded, r.group_size, r.reason) for r in result.requests}
    assert (result.outcome, result.snapshot_id) == ("Committed", story.head().snapshot_id), process.log[-3000:]
    assert told == {
        "ns/one": (True, 3, ""),
        "ns/two": (True, 3, ""),
        "ns/back": (True, 3, ""),
        "ns/wrong": (False, 0, "UnknownRestatement"),
    }
    assert result.requests[0].unknown_batch_ids == ("unheard-of",)
    assert story.table().metadata.format_version == format_version
    story.check_reads(of_batches("B", "C"))

    undone = namespace.carried_out(an_undo(story, of="one"))

    assert (undone.outcome, undone.requests[0].rows_restored) == ("Committed", 4)
    story.check_reads(of_batches("A", "B", "C"))


def test_its_jvm_is_small_and_its_command_line_holds_no_catalog(process: Process) -> None:
    command = Path(f"/proc/{process.jvm()}/cmdline").read_text().split("\0")

    assert "-Xmx256m" in command
    assert "spark.sql.catalog." not in " ".join(command)


def test_rows_that_no_ledger_knows_are_found_without_spark(story: Story, namespace: Namespace) -> None:
    """Another writer's, and an id that sorts between two others."""
    story.append_as_a_stranger("stray", None)

    result = namespace.carried_out(a_revert(story, "stray", "B-"))

    assert result.requests[0].unknown_batch_ids == ("B-",)
    assert story.rows_at() == of_batches(*ALL) + Counter[Row]({(None, 501, 1): 1})


def test_a_head_of_another_writer_gets_a_ledger(story: Story, namespace: Namespace) -> None:
    story.revert("A")
    story.append_as_a_stranger("A")

    first = namespace.carried_out(story.consolidation())
    again = namespace.carried_out(story.consolidation(attempt=2))

    assert (first.outcome, first.snapshot_id) == ("Committed", story.head().snapshot_id)
    assert story.keys()[names.LEDGER]
    assert (again.outcome, again.snapshot_id) == ("NothingToDo", None)
    story.check_reads(of_batches("B", "C"))


def test_who_asks_again_is_told_the_first_result(story: Story, namespace: Namespace) -> None:
    """Another attempt of the run, and another run with the same request."""
    spec = a_revert(story, "A")
    first = namespace.carried_out(spec)
    head = story.head().snapshot_id
    assert spec.restatement is not None

    again = namespace.carried_out(spec.model_copy(update={"attempt": 2}))
    beside = namespace.carried_out(story.restatement(*spec.restatement.requests, a_request("more", batch_ids=("Z",))))

    assert (first.outcome, again.outcome, beside.outcome) == ("Committed", "AlreadyCommitted", "Committed")
    assert {r.requests[0].snapshot_id for r in (first, again, beside)} == {head}
    assert {(r.requests[0].succeeded, r.requests[0].rows_deleted) for r in (first, again, beside)} == {(True, 4)}


def test_progress_says_that_it_was_begun_and_how_it_ended(story: Story, namespace: Namespace) -> None:
    spec = a_revert(story, "A")

    namespace.carried_out(spec)

    told = namespace.progress(spec)
    assert told is not None
    assert (told.run_id, told.attempt, told.phase, told.begun) == (spec.run_id, 1, "Succeeded", 1)


def test_the_lease_is_renewed_by_the_one_that_serves(process: Process, server: ApiServer) -> None:
    assert process.is_up()
    server.wait_for(lambda: server.lease(BOX).get("holderIdentity") == "committer-1", 30)
    first = server.lease(BOX)["renewTime"]

    server.wait_for(lambda: server.lease(BOX)["renewTime"] > first, 30)


# --- what it leaves to a Job ------------------------------------------------------------------------------------------------


def a_table(story: Story, format_version: int = 2, **properties: str) -> None:
    create = story.consolidation().table.create
    assert create is not None
    made = create.model_copy(update={"format_version": format_version})
    SparkTable.create(story.spark, CATALOG, story.name, made, properties)


@pytest.mark.parametrize(
    "case", ["not there", "not claimed", "not prepared", "version 1", "folder", "no catalog", "replay"]
)
def test_what_needs_spark_is_told_so_and_nothing_is_changed(
    spark: SparkSession, lake: Lake, namespace: Namespace, process: Process, tmp_path: Path, case: str
) -> None:
    """The operator then launches a Job, which says for good what it says."""
    assert process.is_up()
    story = Story.begin(spark, lake)
    claim = {names.CLAIM: f"air/{story.name}"}
    spec = a_revert(story, "A")
    match case:
        case "not claimed":
            a_table(story)
        case "not prepared":
            a_table(story, **claim)
        case "version 1":
            a_table(story, 1, **claim)
        case "folder":
            lake.add_catalog("folder", type="hadoop", warehouse=f"file://{tmp_path}")
            spec = spec.model_copy(update={"table": TableRef(catalog="folder", name=story.name)})
        case "no catalog":
            spec = spec.model_copy(update={"table": TableRef(catalog="nowhere", name=story.name)})
        case "replay":
            begun(story)
            spec = story.restatement(a_request("r", batch_ids=("A",)), story.a_replay("B", by="B2"))
    before = story.table().metadata_location if case not in ("not there", "folder", "no catalog") else ""

    result = namespace.carried_out(spec)

    assert (result.outcome, result.reason, result.permanent) == ("Failed", "NeedsSpark", False)
    assert result.message.endswith("Nothing was changed; the run is carried out by a Job.")
    assert before in ("", story.table().metadata_location if before else "")


def test_a_table_of_another_dataset_is_refused_for_good(story: Story, namespace: Namespace) -> None:
    spec = a_revert(story, "A")
    stranger = spec.dataset.model_copy(update={"name": "other"})

    result = namespace.carried_out(spec.model_copy(update={"dataset": stranger}))

    assert (result.reason, result.permanent) == ("TableClaimed", True)


def test_what_is_outside_its_boundary_is_refused_for_good(story: Story, namespace: Namespace) -> None:
    """An operation that is withheld, and a table that lies elsewhere."""
    withheld = RunBoundary(operations=(AllowedOperation.REPLAY, AllowedOperation.CREATE_TABLE))
    buffer_only = RunBoundary(uris=(story.buffer.uri,))
    asked = [
        a_revert(story, "A", name=name).model_copy(update={"boundary": boundary})
        for name, boundary in (("withheld", withheld), ("elsewhere", buffer_only))
    ]

    results = [namespace.carried_out(spec) for spec in asked]

    assert [(r.outcome, r.reason, r.permanent) for r in results] == [("Failed", "OutsideBoundary", True)] * 2
    assert "spec.operation Revert is outside the boundary operations of namespace air" in results[0].message
    assert f"the table's location {story.table().location()} is outside the boundary uris" in results[1].message
    assert story.states() == dict.fromkeys(ALL, "promoted")


def test_a_group_changes_nothing_on_a_table_that_was_rolled_back_since_it_was_asked_for(
    story: Story, namespace: Namespace
) -> None:
    """Between the operator's look and the run somebody took the table back to before D came. Nothing is done to a table that
    nobody expects, and no request is refused for it: once the head is accepted, the same group is carried out on it."""
    story.put("D")
    story.consolidate("D")
    head, before = story.snapshots()[:2]
    requests = a_request("one", batch_ids=("A",)), a_request("two", batch_ids=("D",))
    group = story.restatement(*requests, seen_snapshot_id=head.snapshot_id, seen_sequence_number=head.sequence_number)
    story.spark.sql(f"CALL {story.catalog}.system.set_current_snapshot('{story.name}', {before.snapshot_id})")

    stopped = namespace.carried_out(group)
    found = story.head().snapshot_id
    accepted = namespace.carried_out(
        group.model_copy(
            update={
                "seen_snapshot_id": before.snapshot_id,
                "seen_sequence_number": before.sequence_number,
                "attempt": 2,
            }
        )
    )

    assert (stopped.outcome, stopped.reason, stopped.requests) == ("Failed", "TableRolledBack", ())
    assert f"does not descend from snapshot {head.snapshot_id}" in stopped.message
    assert found == before.snapshot_id
    assert [(r.succeeded, r.group_size) for r in accepted.requests] == [(True, 2)] * 2
    story.check_reads(of_batches("B", "C"))
    assert story.consolidate("D").batches_withheld == 1


def test_a_run_that_has_ended_the_process_again_and_again_is_left_to_a_job(story: Story, namespace: Namespace) -> None:
    """One bad run must not take the committer from everybody else for ever."""
    spec = a_revert(story, "A")
    begun_before = {"runId": spec.run_id, "phase": "Committing", "begun": 3, "updatedTime": "2026-03-01T12:00:00Z"}
    namespace.server.create(namespace.config_map(spec))
    namespace.server.put(namespace.config_map(spec), **{f"{spec.run_id[:12]}.progress.json": json.dumps(begun_before)})

    result = namespace.carried_out(spec)

    assert (result.reason, result.permanent) == ("NeedsSpark", False)
    assert "ended 3 times in the middle" in result.message
    assert namespace.carried_out(spec.model_copy(update={"attempt": 2})).outcome == "Committed"


# --- what is not wanted any more --------------------------------------------------------------------------------------------


def test_runs_of_a_dataset_that_is_gone_and_runs_that_were_replaced_are_dropped(
    story: Story, namespace: Namespace
) -> None:
    server, head = namespace.server, story.head().snapshot_id
    deleted, replaced, forgotten = (a_revert(story, "A", name=n) for n in ("deleted", "replaced", "forgotten"))
    deleted = deleted.model_copy(update={"dataset": deleted.dataset.model_copy(update={"name": "gone", "uid": "gone"})})
    newer = replaced.model_copy(update={"attempt": 2})
    with server.news:  # before anybody looks
        namespace.ask(deleted)
        server.delete(namespace.config_map(deleted))
        namespace.ask(replaced, document=newer.to_json())
        namespace.ask(forgotten)
        server.put(namespace.config_map(forgotten), **{f"{forgotten.run_id[:12]}.run.json": None})
        server.put(BOX, unreadable="{}")

    namespace.wait_until_done(deleted, replaced, forgotten)

    server.wait_for(lambda: "unreadable" not in server.data(BOX), 30)
    assert [namespace.document(s, "result.json") for s in (replaced, forgotten)] == [None, None]
    assert story.head().snapshot_id == head


def test_a_run_that_is_called_off_before_its_turn_is_not_carried_out(story: Story, namespace: Namespace) -> None:
    """Two of one Dataset: the second waits for the first, and is gone when that is done."""
    first, second = a_revert(story, "A", name="first"), a_revert(story, "B", name="second")
    with story.lake.locked_catalog():
        namespace.ask(first)
        namespace.server.wait_for(lambda: namespace.progress(first) is not None, 60)
        key = namespace.ask(second)
        namespace.server.put(BOX, **{key: None})

    assert namespace.result(first).outcome == "Committed"
    assert namespace.carried_out(an_undo(story, of="first")).outcome == "Committed"
    assert "ns/second/0" not in story.ledger().requests


# --- what comes after the result --------------------------------------------------------------------------------------------


def test_history_is_cut_and_the_table_of_batches_brought_up_to_date_after_the_result(
    story: Story, namespace: Namespace, process: Process
) -> None:
    limits = SnapshotLimits(max_age_seconds=432_000, min_to_keep=1, max_count=3)
    for n in range(4):
        story.revert("A", name=f"r{n}")

    result = namespace.carried_out(a_revert(story, "B", snapshots=limits, batch_tracking=True))

    assert (result.outcome, result.snapshots_expired) == ("Committed", 0)
    namespace.server.wait_for(lambda: len(story.table().snapshots()) <= 3, 60, process.log[-3000:])
    wanted = {"A": "reverted", "B": "reverted", "C": "promoted"}
    namespace.server.wait_for(lambda: shown(story).items() >= wanted.items(), 60, process.log[-3000:])
    story.check_reads(of_batches("C"))


def test_a_table_in_an_object_store_is_committed_to_and_its_history_cut(
    spark: SparkSession, lake: Lake, namespace: Namespace, process: Process, tmp_path: Path
) -> None:
    """On a real S3 server."""
    assert process.is_up()
    limits = SnapshotLimits(max_age_seconds=432_000, min_to_keep=1, max_count=2)
    with s3.running() as store:
        home = {"uri": f"sqlite:///{tmp_path}/s3.db", "warehouse": f"s3://{store.bucket('lake')}/wh"}
        lake.add_catalog("stored", type="sql", **home, **store.properties(), **{"s3.path-style-access": "true"})
        make_session("stored")
        story = begun(Story.begin(spark, lake, catalog="stored"))
        for n in range(3):
            assert namespace.carried_out(a_revert(story, "A", name=f"r{n}")).outcome == "Committed"

        result = namespace.carried_out(a_revert(story, "B", name="last", snapshots=limits))

        assert result.outcome == "Committed", process.log[-3000:]
        namespace.server.wait_for(lambda: len(story.table().snapshots()) <= 2, 60, process.log[-3000:])
        assert of_arrow(lethe.scan(story.full_name).to_arrow()) == of_batches("C")
        kept = {s.manifest_list.rpartition("/")[2] for s in story.table().snapshots()}
        lists = lambda: {k.rpartition("/")[2] for k in store.keys("lake") if "/snap-" in k}  # noqa: E731
        namespace.server.wait_for(lambda: lists() == kept, 30, "only the kept snapshots have lists")


def shown(story: Story) -> dict[str, str]:
    """The batches and their states, as the table of batches has them by now."""
    catalog, name = catalogs.load(CATALOG), f"{story.name}_batches"
    if not catalog.table_exists(name):
        return {}
    return {r["batch_id"]: r["state"] for r in catalog.load_table(name).scan().to_arrow().to_pylist()}


def test_a_long_result_lies_beside_the_table(story: Story, namespace: Namespace) -> None:
    """No ConfigMap could hold what some thousands of requests have to tell; it says where that lies, and its SHA-256."""
    spec = story.restatement(*(a_request(f"r{n}", batch_ids=(f"unheard-of-{n}",)) for n in range(1000)))

    result = namespace.carried_out(spec)

    pointer = ResultPointer.model_validate_json(namespace.document(spec, "result.json") or "")
    content = Path(local(pointer.uri)).read_bytes()
    assert len(content) > 262_144
    assert hashlib.sha256(content).hexdigest() == pointer.sha256
    assert (result.outcome, len(result.requests)) == ("Committed", 1000)
    assert {r.group_size for r in result.requests} == {1000}
    assert all(r.unknown_batch_ids_count == 1 for r in result.requests)
