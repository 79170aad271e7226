"""A reconcile of a Dataset whose table and buffer are real, on SQLite and local files."""

import sqlite3
import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe import batches_table
from lethe.base.errors import Verdict
from lethe.buffer import digest
from lethe.buffer.digest import BufferDigest
from lethe.guards.claim import Owner
from lethe.ingest.shared_folders import Adopted
from lethe.kube import CONFIG_MAPS, DATASETS, JOBS, RESTATEMENTS, VACUUM_POLICIES, Away, ResourceKind
from lethe.ledger.ledger import BatchState
from lethe_operator import carry_out
from lethe_operator.carry_out import BufferSweep
from lethe_operator.cluster import status
from lethe_operator.cluster.schedule import Key
from lethe_operator.dataset.listing import Listings
from lethe_operator.dataset.observe import Sources, observe
from lethe_operator.dataset.tables import TableReader
from lethe_operator.reconcile import Reconciler, utc_now
from lethe_operator.resources.common import LABEL_KIND
from lethe_operator.resources.dataset import parse_dataset
from lethe_operator.resources.observed import NoTable, NotListed, Observation, Unavailable
from lethe_operator.restatement import status as restatement_status
from lethe_operator.restatement.observe import IdLists
from lethe_operator.restatement.outcome import Assessment, RestatementPhase
from lethe_operator.runs import launch
from lethe_operator.settings import Settings
from pyiceberg.types import LongType

from tests.support.builders import NOW, a_batch
from tests.support.fake_cluster import Client, watched
from tests.support.resources import a_restatement, a_restatement_body
from tests.support.small_lake import FLIGHTS, SmallLake, claimed_table
from tests.support.statuses import document


@pytest.fixture
def bare(bare: SmallLake) -> SmallLake:
    """Its Dataset's buffer holds the batches A and B."""
    bare.put("A", "B")
    return bare


def seen(lake: SmallLake, tables: TableReader) -> Observation:
    found = observe(
        Sources(lake.cluster, watched(lake.cluster), tables, IdLists(), Settings()), "ns", "flights", utc_now()
    )  # type: ignore[arg-type]
    return found.world


def counted(world: Observation) -> tuple[list[str], int, int]:
    """The ids that wait, how many are promoted, and of how many the objects may go."""
    buffer = world.buffer
    assert isinstance(buffer, BufferDigest)
    return [b.id for b in buffer.oldest], buffer.promoted, buffer.expired


def test_what_waits_and_what_may_go_follow_from_the_tables_ledger(lake: SmallLake) -> None:
    lake.commit(lake.promoted("A"))
    tables = TableReader()

    first, second = seen(lake, tables), seen(lake, tables)

    assert counted(first) == (["B"], 1, 1)
    assert counted(second) == (["B"], 1, 0)  # a sweep begins once for each listing


def test_a_commit_after_the_listing_counts_without_another_listing(lake: SmallLake) -> None:
    """A batch is not proposed again while its buffer rests."""
    tables = TableReader(listings=Listings(clock=lambda: 1000.0))  # no time passes, so that it is listed once
    lake.commit(a_batch("X", BatchState.REVERTED))
    assert counted(seen(lake, tables))[0] == ["A", "B"]

    lake.commit(lake.promoted("A"))

    after = seen(lake, tables)
    assert counted(after) == (["B"], 1, 0)
    assert (after.buffer.batches, after.buffer.bytes) == (1, 4)  # type: ignore[union-attr]


def test_one_sweep_deletes_all_that_retention_allows_and_nothing_else(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from a buffer of several pieces. What was written over after its promotion was never promoted."""
    monkeypatch.setattr(digest, "OBJECTS_PER_PIECE", 3)
    old = [f"old-{n}" for n in range(9)]
    lake.put(*old, "over")
    lake.commit(*map(lake.promoted, (*old, "over")), replace(lake.promoted("A"), time=utc_now()))
    overwritten = next(lake.home.glob("buffer/*over*/*.parquet"))
    overwritten.write_bytes(b"other rows")

    lake.operator()(FLIGHTS)

    assert set(lake.buffered()) == {"A", "B", "over"}
    assert overwritten.read_bytes() == b"other rows"


def test_a_sweep_lists_no_further_than_the_batches_that_have_expired(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are listed first, if their names have times. Those that wait come after them."""
    monkeypatch.setattr(digest, "OBJECTS_PER_PIECE", 2)
    lake.put("C", "D")
    lake.commit(*map(lake.promoted, "ABCD"))
    dataset = parse_dataset(lake.cluster.get(DATASETS, "ns", "flights"))
    owner = Owner("ns", "flights", dataset.meta.uid, str(lake.table.metadata.table_uuid))

    BufferSweep(dataset, 2, lake.ledger.batches, owner, Adopted(), utc_now()).run()

    assert set(lake.buffered()) == {"C", "D"}


def test_a_sweep_ends_after_its_time_and_the_next_listing_goes_on(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.commit(lake.promoted("A"))
    operator = lake.operator()
    monkeypatch.setattr(carry_out, "SWEEP_SECONDS", -1.0)

    operator(FLIGHTS)
    left = set(lake.buffered())
    monkeypatch.undo()
    monkeypatch.setenv("PYICEBERG_HOME", str(lake.home))
    operator.tables.listings.forget("ns/flights")
    operator(FLIGHTS)

    assert (left, set(lake.buffered())) == ({"A", "B"}, {"B"})


def test_before_there_is_a_table_everything_waits(bare: SmallLake) -> None:
    world = seen(bare, TableReader())

    assert isinstance(world.table, NoTable)
    assert counted(world) == (["A", "B"], 0, 0)


def condition(lake: SmallLake, kind: str) -> dict[str, str]:
    found: dict[str, str] = next(c for c in lake.status()["conditions"] if c["type"] == kind)
    return found


def test_a_table_whose_properties_configure_a_jvm_stops_its_dataset_until_they_are_gone(lake: SmallLake) -> None:
    """No run starts, only to be refused."""
    name = "write.location-provider.impl"
    with lake.table.transaction() as change:
        change.set_properties({name: "evil.Class"})
    operator = lake.operator()

    operator(FLIGHTS)
    stalled, jobs = condition(lake, "Stalled"), lake.jobs()
    with lake.table.transaction() as change:
        change.remove_properties(name)
    operator(FLIGHTS)

    assert (stalled["status"], stalled["reason"]) == ("True", "UnsafeProperty")
    assert f"the table property {name} names a class" in stalled["message"]
    assert "evil" not in stalled["message"]
    assert jobs == []
    assert condition(lake, "Stalled")["status"] == "False"
    assert len(lake.jobs()) == 1


def test_the_filters_of_holds_are_compared_with_the_table_whenever_they_or_it_change(lake: SmallLake) -> None:
    """Also by an operator that has read this table before. It looks again when a hold ends."""
    operator, ends = lake.operator(), utc_now().replace(microsecond=0) + timedelta(minutes=2)

    def held(filter: str) -> str:
        hold = {"name": "case-7", "filter": filter, "until": ends.isoformat()}
        lake.cluster.patch(DATASETS, "ns", "flights", {"spec": {"holds": [hold]}})
        nonlocal again
        again = operator(FLIGHTS)
        return condition(lake, "Stalled")["reason"]

    again = operator(FLIGHTS)
    reasons = [condition(lake, "Stalled")["reason"], held("v > 1"), held("secret > 1")]
    with lake.table.update_schema() as change:
        change.add_column("secret", LongType())
    reasons.append(held("secret > 1"))
    with lake.table.update_schema() as change:
        change.rename_column("secret", "other")
    operator(FLIGHTS)
    reasons.append(condition(lake, "Stalled")["reason"])

    assert [r == "InvalidHold" for r in reasons] == [False, False, True, False, True]
    assert "secret" not in condition(lake, "Stalled")["message"]
    assert lake.status()["holds"][0]["active"] is True
    assert again is not None
    assert again.time is not None
    assert again.time <= ends


def test_a_view_in_the_place_of_the_table_stops_the_dataset_until_it_is_gone(bare: SmallLake) -> None:
    """Whether or not the Dataset would create its table, and whether the catalog was polled before."""
    tables = TableReader()
    assert isinstance(seen(bare, tables).table, NoTable)
    tables.forget("ns/flights")
    as_view(bare)

    first, second = seen(bare, tables).table, seen(bare, tables).table
    with sqlite3.connect(bare.home / "c.db") as database:
        database.execute("DELETE FROM iceberg_tables")
    database.close()

    for found in (first, second):
        assert isinstance(found, Unavailable)
        assert (found.reason, found.transient) == ("TableIsView", False)
        assert "air.flights is a view in the catalog lite" in found.message
    assert isinstance(seen(bare, tables).table, NoTable)


def as_view(lake: SmallLake) -> None:
    """Let the catalog have a view of that name, as Iceberg's Java library would write it."""
    claimed_table(lake.catalog)
    with sqlite3.connect(lake.home / "c.db") as database:
        database.execute("UPDATE iceberg_tables SET iceberg_type = 'VIEW'")
    database.close()


def test_nothing_is_listed_while_the_promoted_batches_are_unknown(lake: SmallLake, tmp_path: Path) -> None:
    """Otherwise every batch would seem to wait. The last listing is still shown."""
    fresh, tables = TableReader(), TableReader()
    lake.commit(lake.promoted("A"))
    seen(lake, tables)
    (tmp_path / "c.db").rename(tmp_path / "away.db")

    first, later = seen(lake, fresh), seen(lake, tables)

    assert isinstance(first.table, Unavailable)
    assert isinstance(first.buffer, NotListed)
    assert counted(later) == (["B"], 1, 0)


def test_a_dataset_that_is_gone_is_forgotten_with_its_buffer(lake: SmallLake) -> None:
    tables = TableReader()
    lake.commit(lake.promoted("A"))
    seen(lake, tables)
    assert tables.listings.last_duration("ns/flights") is not None

    tables.forget("ns/flights")

    assert tables.listings.last_duration("ns/flights") is None


LABELS = {"namespace": "ns", "dataset": "flights"}


def test_what_was_promoted_long_ago_goes_and_what_waits_is_promoted(lake: SmallLake, tmp_path: Path) -> None:
    lake.commit(lake.promoted("A"))
    reconcile = lake.operator()

    reconcile(FLIGHTS)

    assert sorted(p.name for p in (tmp_path / "buffer").iterdir()) == ["_lethe.json", "batch_id=B"]
    assert len(lake.cluster.list(JOBS, "ns")) == 1
    assert lake.runs()[0].consolidation.batch_ids == ("B",)  # type: ignore[union-attr]
    assert lake.status()["consolidation"] == {
        "decision": "Due",
        "reason": "EnoughBatches",
        "message": "1 batches wait, minBatches is 1.",
    }
    value = reconcile.metrics.registry.get_sample_value
    assert (value("lethe_buffer_batches", LABELS), value("lethe_promoted_batches", LABELS)) == (1, 1)
    assert value("lethe_listing_objects", LABELS) == 4

    reconcile(FLIGHTS)

    assert lake.status()["consolidation"]["decision"] == "Running"
    assert len(lake.cluster.list(JOBS, "ns")) == 1


def test_each_file_of_a_buffer_of_files_is_promoted_and_goes_when_its_time_has_come(
    lake: SmallLake, tmp_path: Path
) -> None:
    lake.cluster.patch(
        DATASETS, "ns", "flights", {"spec": {"buffer": {"uri": f"file://{tmp_path}/files", "layout": "File"}}}
    )
    (tmp_path / "files").mkdir()
    for name in ("old.csv", "changed.csv", "new é.csv.gz", "twin.csv", "twin.csv.gz", "_under_way.csv"):
        (tmp_path / "files" / name).write_text(name)
    lake.commit(lake.promoted("old"), lake.promoted("changed"))
    (tmp_path / "files" / "changed.csv").write_text("other rows")

    lake.operator()(FLIGHTS)

    assert {p.name for p in (tmp_path / "files").iterdir()} == {
        *("_lethe.json", "changed.csv", "new é.csv.gz", "twin.csv", "twin.csv.gz", "_under_way.csv"),
    }
    (run,) = lake.runs()
    assert run.buffer.layout == "File"
    assert run.consolidation.batch_ids == ("new é",)  # type: ignore[union-attr]
    told = {i["folder"].rpartition("/")[2]: i["message"] for i in lake.status()["buffer"]["invalidFolders"]}
    assert told.keys() == {"changed.csv", "twin.csv", "twin.csv.gz"}
    assert "belong to the batch 'twin'" in told["twin.csv"]


def test_an_overwritten_object_of_a_promoted_batch_stays_and_is_reported(lake: SmallLake, tmp_path: Path) -> None:
    lake.commit(lake.promoted("A"))
    part = tmp_path / "buffer" / "batch_id=A" / "p.parquet"
    part.write_text("other rows")

    lake.operator()(FLIGHTS)

    assert part.read_text() == "other rows"
    assert lake.status()["buffer"]["invalidFolders"][0]["folder"].endswith("batch_id=A/p.parquet")


def test_a_key_that_is_written_again_after_its_deletion_is_not_deleted_again(lake: SmallLake, tmp_path: Path) -> None:
    """The last listing still tells of the object that was there before; its rows were promoted, these were not."""
    lake.commit(lake.promoted("A"))
    reconcile = lake.operator()
    reconcile(FLIGHTS)
    part = tmp_path / "buffer" / "batch_id=A" / "p.parquet"
    part.parent.mkdir()
    part.write_text("rows")

    reconcile(FLIGHTS)

    assert part.read_text() == "rows"


def test_runs_and_failures_are_counted_and_a_dataset_that_is_gone_is_forgotten(lake: SmallLake) -> None:
    lake.commit(lake.promoted("A"))
    reconcile = lake.operator()
    reconcile(FLIGHTS)
    (job,) = lake.cluster.list(JOBS, "ns")
    ended = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-03-01T12:00:09Z"}]}
    lake.cluster.patch(JOBS, "ns", job["metadata"]["name"], {"status": {"succeeded": 1, **ended}})

    reconcile(FLIGHTS)
    reconcile(FLIGHTS)

    value = reconcile.metrics.registry.get_sample_value
    kind = {"kind": "Consolidation", "outcome": "Succeeded"}
    assert value("lethe_runs_total", {**LABELS, **kind}) == 1
    lake.cluster.delete(DATASETS, "ns", "flights")
    reconcile(FLIGHTS)
    assert value("lethe_buffer_batches", LABELS) is None
    assert reconcile.tables.listings.last_duration("ns/flights") is None

    def away(*_: str) -> None:
        raise Away(0, "NoAnswer", "gone")

    lake.ask("r")  # its status will show that there is no such Dataset
    lake.cluster.patch = away  # type: ignore[assignment, method-assign]
    with pytest.raises(Away):
        reconcile(FLIGHTS)
    assert value("lethe_reconciles_total", {"kind": "Dataset"}) == 5
    assert value("lethe_reconcile_failures_total", {"kind": "Dataset"}) == 1


def test_metrics_show_the_totals_of_the_table_of_batches_and_it_is_not_read_again_while_current(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reconcile of an idle table costs nothing more for it."""
    reconcile = lake.operator()
    count = reconcile.metrics.registry.get_sample_value
    flights = {"namespace": "ns", "dataset": "flights"}
    promoted = {**flights, "state": "promoted"}
    looked: list[str] = []
    find = batches_table.find
    monkeypatch.setattr(batches_table, "find", lambda c, name: looked.append(name) or find(c, name))
    lake.commit(a_batch("P", rows=7))

    reconcile(FLIGHTS)
    assert (count("lethe_batches_behind", flights), count("lethe_batches", promoted)) == (1, None)

    batches_table.bring_up_to_date(lake.catalog, "air.flights", "batch_id", batches_table.TrackingUpdate(create=True))
    looked.clear()
    for _ in range(3):
        reconcile(FLIGHTS)

    assert (count("lethe_batches_behind", flights), count("lethe_batches_rows", promoted)) == (0, 7)
    assert len(looked) == 1

    lake.commit(a_batch("Q", rows=5))
    reconcile(FLIGHTS)
    assert (count("lethe_batches_behind", flights), count("lethe_batches_rows", promoted)) == (1, 7)


def test_a_group_that_no_config_map_could_hold_has_an_end_for_each(lake: SmallLake) -> None:
    """Neither the run's document nor its result fits into the ConfigMap: both are beside the table."""
    granted, refused = [f"a{n}" for n in range(250)], [f"r{n}" for n in range(250)]
    lake.ask(*granted)
    lake.ask(*refused, reason="refuse")
    lake.operator()(FLIGHTS)
    (job,) = lake.jobs()
    lake.end(job)

    lake.operator()(FLIGHTS)

    assert lake.phases() == {**dict.fromkeys(granted, "Succeeded"), **dict.fromkeys(refused, "Failed")}
    (config_map,) = lake.cluster.list(CONFIG_MAPS, "ns")
    assert sum(map(len, config_map["data"].values())) < 64 * 1024
    assert [j["metadata"]["labels"][LABEL_KIND] for j in lake.jobs()] == ["Restatement", "Consolidation"]


def test_of_many_restatements_only_those_that_change_cost_a_request(lake: SmallLake) -> None:
    """All of them are read once; then a reconcile asks for none and writes of those only that are new."""
    for n in range(400):
        lake.cluster.create(RESTATEMENTS, "ns", a_restatement_body(f"r{n}", batchIds=[f"b{n}"], status=succeeded()))
    client = Client(lake.cluster)
    reconcile = lake.operator(client)
    reconcile(FLIGHTS)
    client.requests.clear()
    lake.ask("new")

    reconcile(FLIGHTS)

    assert [r for r in client.requests if r.endswith(" Restatement")] == ["patch Restatement"]


def succeeded() -> dict[str, Any]:
    standing = Assessment(RestatementPhase.SUCCEEDED, "True", Verdict("Succeeded", "3 rows deleted."))
    return dict(document(restatement_status.status(a_restatement(), standing, NOW)))


def test_thousands_of_statuses_are_written_in_parallel_until_the_api_server_does_not_answer(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"a{n:03}" for n in range(100)]
    lake.ask(*names)
    lake.operator()(FLIGHTS)
    lake.end(lake.jobs()[0])
    patch, lock, together = lake.cluster.patch, threading.Lock(), threading.Barrier(status.THREADS, timeout=60)
    answers = iter([True] * 40)
    asked: list[str] = []

    def written(kind: ResourceKind, namespace: str, name: str, *args: Any) -> Any:
        if kind is not RESTATEMENTS:
            return patch(kind, namespace, name, *args)
        with lock:
            asked.append(name)
            first = len(asked) <= status.THREADS
        if first:
            together.wait()
        with lock:
            if not next(answers, False):
                raise Away(0, "NoAnswer", "PATCH")
            return patch(kind, namespace, name, *args)

    with monkeypatch.context() as patched:
        patched.setattr(lake.cluster, "patch", written)
        with pytest.raises(Away):
            lake.operator()(FLIGHTS)
    at_first = Counter(lake.phases().values())
    lake.operator()(FLIGHTS)

    assert at_first == {"Succeeded": 40, "Queued": 60}
    assert 40 < len(asked) <= 40 + status.THREADS
    assert set(lake.phases().values()) == {"Succeeded"}


def test_the_next_run_starts_before_the_statuses_of_the_last_group_are_written(lake: SmallLake) -> None:
    """There may be thousands of them, and a driver takes its time to start."""
    lake.ask("a")
    lake.operator()(FLIGHTS)
    lake.end(lake.jobs()[0])
    lake.ask("b")
    client = Client(lake.cluster)

    lake.operator(client)(FLIGHTS)

    assert client.requests.index("create Job") < client.requests.index("patch Restatement")
    assert lake.phases() == {"a": "Succeeded", "b": "Queued"}


def test_a_run_that_cannot_be_stored_does_not_prevent_status_writes(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ask("a")
    lake.operator()(FLIGHTS)
    lake.end(lake.jobs()[0])
    lake.ask("b")

    def away(*_: Any) -> str:
        raise ConnectionError("S3")

    monkeypatch.setattr(launch, "intent_document", away)
    with pytest.raises(ConnectionError):
        lake.operator()(FLIGHTS)

    assert lake.phases() == {"a": "Succeeded", "b": "Queued"}


def test_finished_restatements_show_a_rollback(lake: SmallLake) -> None:
    """They are not looked at otherwise."""
    lake.commit(lake.promoted("A"), lake.promoted("B"))
    older = lake.table.current_snapshot()
    assert older is not None
    lake.ask("a", "b")
    operator = lake.operator()
    operator(FLIGHTS)
    lake.end(lake.jobs()[0])
    operator(FLIGHTS)
    assert lake.phases() == {"a": "Succeeded", "b": "Succeeded"}
    assert names_of(operator) == []

    lake.table.manage_snapshots().rollback_to_snapshot(older.snapshot_id).commit()
    operator(FLIGHTS)

    assert lake.phases() == {"a": "RolledBack", "b": "RolledBack"}
    assert names_of(operator) == ["a", "b"]


def names_of(operator: Reconciler) -> list[str]:
    """Those that it looks at each time."""
    return [r.meta.name for r in operator.objects.restatements.of("ns", "flights", utc_now()).restatements]


def test_a_reconcile_writes_a_limited_number_of_statuses_and_continues_at_once(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is free for others between two parts, and no Job is deleted before its outcome is shown everywhere."""
    lake.ask(*(f"a{n:03}" for n in range(100)))
    operator = lake.operator()
    operator(FLIGHTS)
    lake.end(lake.jobs()[0])
    monkeypatch.setattr(restatement_status, "STATUSES_AT_ONCE", 40)
    shown: list[int] = []

    while len(shown) < 3:
        again = operator(FLIGHTS)
        shown.append(Counter(lake.phases().values())["Succeeded"])
        assert again is not None
        assert again.idle is False
        assert len(shown) == 3 or (again.time is not None and again.time <= utc_now())

    assert shown == [40, 80, 100]


def test_an_idle_dataset_says_so_and_a_batch_ends_that(lake: SmallLake) -> None:
    lake.commit(lake.promoted("A"), lake.promoted("B"))
    reconcile = lake.operator()

    looks = [reconcile(FLIGHTS) for _ in range(3)]
    lake.put("C")
    reconcile.tables.listings.forget("ns/flights")  # it would rest for some seconds
    looks.append(reconcile(FLIGHTS))

    assert [look is not None and look.idle for look in looks] == [False, True, True, False]


def test_what_does_not_exist_is_no_reason_to_look_again(lake: SmallLake) -> None:
    operator = lake.operator()
    lake.cluster.delete(DATASETS, "ns", "flights")

    assert operator(FLIGHTS) is None
    assert operator(Key("VacuumPolicy", "ns", "air")) is None


def test_a_new_policy_is_a_reason_to_look_at_its_namespace_once(lake: SmallLake) -> None:
    spec = {"datasetSelector": {}, "triggers": {"activeTombstones": 4}, "approval": "Automatic"}
    metadata = {"namespace": "ns", "name": "air", "generation": 3}
    lake.cluster.create(VACUUM_POLICIES, "ns", {"metadata": metadata, "spec": spec})
    operator = lake.operator()

    looks = [operator(Key("VacuumPolicy", "ns", "air")) for _ in range(2)]

    assert [look is not None and look.for_namespace for look in looks] == [True, False]
