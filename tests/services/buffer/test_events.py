"""An operator that hears of batches from a queue: real queue server, real S3, real ledger; runs are only asked for."""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from lethe.ingest.shared_folders import BufferClaims
from lethe.kube import CONFIG_MAPS, DATASETS, JOBS
from lethe.ledger.ledger import BatchState

from tests.support.fake_cluster import FakeCluster
from tests.support.hearing import SECONDS, Air, eventually, readers, reading, reading_soon
from tests.support.resources import a_dataset_body, condition
from tests.support.servers import sqs
from tests.support.servers.postgres import free_port
from tests.support.servers.s3 import S3
from tests.support.servers.sqs import Sqs, TestQueue, created
from tests.support.small_lake import claimed_table, eager_dataset
from tests.support.tables import catalog_in


@pytest.fixture
def make_air(s3: S3, queues: Sqs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Air]]:
    made: list[Air] = []

    def make(queues: Sqs = queues, queue: TestQueue | None = None, **events: Any) -> Air:
        properties = {**s3.properties(), **queues.properties}
        monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
        table = claimed_table(catalog_in(tmp_path, **properties))
        queue = queue or queues.queue()
        bucket = s3.bucket(f"lake-{uuid.uuid4().hex[:8]}")
        wanted = {"queueUrl": queue.url, "windowSeconds": 1, "resyncSeconds": 3600, **events}
        body = eager_dataset("flights", f"s3://{bucket}/buffer")
        body["spec"]["buffer"]["events"] = wanted
        made.append(Air(s3, queue, bucket, table, FakeCluster((DATASETS, body))))
        return made[-1]

    yield make
    for air in made:
        for tables in air.operators:
            tables.forget("ns/flights")
        if readers():
            air.queue.send("what ends a long poll")
    for thread in readers():
        thread.join(SECONDS)


def test_a_batch_is_promoted_without_another_listing_and_its_messages_go_after_the_commit(
    make_air: Callable[..., Air],
) -> None:
    air = make_air()
    reconcile = reading(air)
    air.queue.send(*air.put("A").values())

    eventually(lambda: air.batches() == [("A",)] and air.queue.counts() == (0, 2), reconcile)

    assert air.listed() == 0
    assert (air.count("Received"), air.count("Acknowledged")) == (2, 0)
    air.commit(air.entry("A"))
    eventually(lambda: air.queue.counts() == (0, 0) and air.count("Acknowledged") == 2, reconcile)
    assert (air.listed(), len(air.runs())) == (0, 1)


def test_the_run_gets_the_objects_of_the_messages(make_air: Callable[..., Air]) -> None:
    """So that the ledger can remember it. The marker is no part of the batch."""
    air = make_air(windowSeconds=2)
    reconcile = reading(air)
    reported = air.put("A")
    air.queue.send(*reported.values())

    eventually(lambda: bool(air.runs()), reconcile)

    (run,) = air.runs()
    (data,) = air.entry("A").objects
    assert run.consolidation is not None
    assert [(o.key, o.etag, o.sequencer) for o in run.consolidation.seen_objects] == [(data.key, data.etag, "01")]


def test_a_window_ends_with_so_many_messages(make_air: Callable[..., Air]) -> None:
    """Long before its time."""
    air = make_air(windowSeconds=300, maxMessages=4, visibilitySeconds=600)
    reconcile = reading_soon(air)

    air.queue.send(*air.put("A", "B").values())

    eventually(lambda: bool(air.runs()), reconcile)
    assert sorted(air.batches()[0]) == ["A", "B"]


def test_doubled_and_reordered_messages_change_nothing(make_air: Callable[..., Air]) -> None:
    air = make_air(windowSeconds=3)
    reconcile = reading(air)
    data, marker = air.put("A").values()
    key = "buffer/batch_id=A/p.parquet"
    older = created(air.bucket, key, "what it was before", "00")

    air.queue.send(marker, data, marker, older, data)

    eventually(lambda: air.batches() == [("A",)] and air.count("Received") == 5, reconcile)
    (run,) = air.runs()
    assert run.consolidation is not None
    air.commit(air.entry("A"))
    eventually(lambda: air.queue.counts() == (0, 0), reconcile)
    assert len(air.runs()) == 1


def test_a_message_that_comes_again_after_the_commit_starts_nothing(make_air: Callable[..., Air]) -> None:
    """The operator died between commit and acknowledgement; the one after it knows by the ledger."""
    air = make_air(visibilitySeconds=5)
    reconcile = reading(air)
    air.queue.send(*air.put("A").values())
    eventually(lambda: air.batches() == [("A",)] and air.queue.counts() == (0, 2), reconcile)
    air.operators[0].events.forget("ns/flights")  # it dies
    air.commit(air.entry("A"))
    for job in air.cluster.list(JOBS, "ns"):
        air.cluster.delete(JOBS, "ns", job["metadata"]["name"])
    for config_map in air.cluster.list(CONFIG_MAPS, "ns"):
        air.cluster.delete(CONFIG_MAPS, "ns", config_map["metadata"]["name"])

    eventually(lambda: air.queue.counts() == (0, 0), air.operator())

    assert (air.runs(), air.count("Acknowledged")) == ([], 2)


def test_a_commit_that_lands_while_a_window_is_open_settles_its_messages(make_air: Callable[..., Air]) -> None:
    """The window is judged by the ledger of its beginning, and by the next as soon as it has ended."""
    air = make_air(windowSeconds=3)
    reconcile = reading(air)
    air.queue.send(*air.put("A").values())
    eventually(lambda: air.queue.counts() == (0, 2))

    air.commit(air.entry("A"))
    reconcile()

    eventually(lambda: air.queue.counts() == (0, 0), reconcile)
    assert (air.runs(), air.waiting()) == ([], (0, 0))


def test_a_message_that_was_lost_is_made_up_for_by_a_listing(make_air: Callable[..., Air]) -> None:
    air = make_air(resyncSeconds=1)
    reconcile = reading(air)

    air.put("A")

    eventually(lambda: air.batches() == [("A",)], reconcile)
    assert air.count("Received") == 0


def test_messages_that_are_none_of_its_business_stay_in_the_queue_and_hold_nothing_up(
    make_air: Callable[..., Air],
) -> None:
    """What is no notification, and what tells of other places, is the redrive policy's."""
    air = make_air(visibilitySeconds=600)
    reconcile = reading(air)
    elsewhere = created(air.bucket, "another/batch_id=A/_SUCCESS")
    nothing = created(air.bucket, "buffer/_refused/batch_id=A/0123/p.parquet")

    air.queue.send("no notification", elsewhere, nothing, *air.put("A").values())

    eventually(lambda: air.batches() == [("A",)] and air.count("Received") == 5, reconcile)
    assert (air.count("Unreadable"), air.count("Elsewhere"), air.count("Acknowledged")) == (1, 1, 1)
    air.commit(air.entry("A"))
    eventually(lambda: air.queue.counts() == (0, 2), reconcile)


def test_a_message_that_another_receiver_needs_too_promotes_its_batch_and_stays(make_air: Callable[..., Air]) -> None:
    """One with several records. Its batch does not wait for the next listing."""
    air = make_air(visibilitySeconds=600)
    reconcile = reading(air)
    of_both = [*air.put("A").values(), created(air.bucket, "another/batch_id=A/_SUCCESS")]
    air.queue.send(json.dumps({"Records": [r for m in of_both for r in json.loads(m)["Records"]]}))

    eventually(lambda: air.batches() == [("A",)] and air.count("Elsewhere") == 1, reconcile)
    air.commit(air.entry("A"))
    reconcile()

    assert (air.listed(), air.count("Acknowledged"), air.queue.counts()) == (0, 0, (0, 1))


def test_a_folder_that_the_store_fails_on_holds_up_no_other(
    make_air: Callable[..., Air], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BufferClaims.folder

    def failing(buffer: BufferClaims, name: str) -> Any:
        if name == "batch_id=bad":
            raise OSError("the store fails")
        return folder(buffer, name)

    monkeypatch.setattr(BufferClaims, "folder", failing)
    air = make_air(windowSeconds=2)
    reconcile = reading(air)

    bad = created(air.bucket, "buffer/batch_id=bad/_SUCCESS")
    air.queue.send(bad, *air.put("A").values())

    eventually(lambda: air.batches() == [("A",)] and air.count("Received") == 3, reconcile)
    assert air.events_ready() == ("True", "QueueRead")
    assert air.queue.counts() == (0, 3)


def test_what_its_producer_took_back_is_not_waited_for(make_air: Callable[..., Air]) -> None:
    air = make_air()
    reconcile = reading(air)
    reported = air.put("A")
    for key in reported:
        air.store.client.delete_object(Bucket=air.bucket, Key=key)

    air.queue.send(reported["buffer/batch_id=A/_SUCCESS"])

    eventually(lambda: air.count("Acknowledged") == 1, reconcile)
    assert (air.queue.counts(), air.runs()) == ((0, 0), [])


def test_a_refused_batch_is_settled_and_another_one_with_its_name_is_noticed(make_air: Callable[..., Air]) -> None:
    air = make_air()
    reconcile = reading(air)
    air.queue.send(*air.put("A").values())
    eventually(lambda: air.batches() == [("A",)] and air.queue.counts() == (0, 2), reconcile)

    refused = air.entry("A", BatchState.REFUSED)
    air.commit(refused)
    eventually(lambda: air.queue.counts() == (0, 0), reconcile)
    air.queue.send(*air.put("A", content=b"other rows").values())

    eventually(lambda: air.waiting() == (1, 10), reconcile)
    assert (air.queue.counts(), air.listed()) == ((0, 2), 0)


def test_no_more_is_received_than_may_be_in_flight(make_air: Callable[..., Air]) -> None:
    air = make_air(maxInFlight=2, maxMessages=2)
    reconcile = reading(air)
    air.queue.send(*air.put("A").values())
    eventually(lambda: air.batches() == [("A",)] and air.queue.counts() == (0, 2), reconcile)

    air.queue.send(*air.put("B").values())
    air.commit(air.entry("A"))
    assert air.queue.counts() == (2, 2)

    # The queue counts messages as received before the reader has them.
    eventually(
        lambda: (air.queue.counts(), air.count("Acknowledged"), air.count("Received")) == ((0, 2), 2, 4), reconcile
    )


def test_a_dataset_that_is_gone_or_paused_leaves_its_queue_alone(make_air: Callable[..., Air]) -> None:
    air = make_air()
    reconcile = reading(air)
    (thread,) = readers()
    air.cluster.patch(DATASETS, "ns", "flights", {"metadata": {"annotations": {"lethe.dev/paused": "true"}}})
    reconcile()
    thread.join(SECONDS)

    air.queue.send("a message")

    assert (thread.is_alive(), air.queue.counts()) == (False, (1, 0))
    assert air.events_ready() == ("False", "Paused")
    air.cluster.delete(DATASETS, "ns", "flights")
    reconcile()
    assert readers() == []


def test_of_two_datasets_with_one_queue_the_older_reads_it(make_air: Callable[..., Air]) -> None:
    air = make_air()
    events = {"queueUrl": air.queue.url}
    older = a_dataset_body("older", meta={"creationTimestamp": "2020-01-01T00:00:00Z"})
    older["spec"]["buffer"]["events"] = events
    air.cluster.create(DATASETS, "ns", older)
    reconcile = air.operator()

    reconcile()

    assert air.events_ready() == ("False", "QueueShared")
    assert readers() == []
    air.put("A")
    eventually(lambda: air.batches() == [("A",)], reconcile)


def test_while_the_queue_is_away_batches_are_found_by_listings(make_air: Callable[..., Air], tmp_path: Path) -> None:
    """And when it is back, it is read again."""
    port = free_port()
    with ExitStack() as running:
        queues = running.enter_context(sqs.running(tmp_path / "first", port))
        air = make_air(queues, queues.queue("flights"))
        reconcile = reading(air)
        running.close()
        eventually(lambda: air.events_ready() == ("False", "QueueUnavailable"), reconcile)

        air.put("A")
        eventually(lambda: air.batches() == [("A",)], reconcile)

    with sqs.running(tmp_path / "second", port) as queues:
        eventually(lambda: air.events_ready() == ("False", "QueueNotFound"), reconcile)
        assert condition(air.cluster.get(DATASETS, "ns", "flights")["status"], "Ready")[0] == "True"
        again = queues.queue("flights")
        eventually(lambda: air.events_ready() == ("True", "QueueRead"), reconcile)
        again.send(air.put("B")["buffer/batch_id=B/_SUCCESS"])
        eventually(lambda: air.count("Received") == 1, reconcile)
        air.operators[0].forget("ns/flights")
