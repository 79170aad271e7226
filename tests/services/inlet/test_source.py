"""The inlet reads each message of a real broker into exactly one batch, whatever stops it, and reports what it cannot read."""

import io
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from lethe.contract.status import SourceStatus
from lethe.decoder.limits import Limits
from lethe_operator.reasons import Reason

from tests.support import poison
from tests.support.servers.kafka import PASSWORD, USER, Broker
from tests.support.streams import Stream, row
from tests.support.tables import catalog_in

STEPS = ("read", "recorded", "written", "all-written", "complete")


@pytest.fixture
def stream(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """A topic with two partitions, an empty table, and an empty buffer."""
    topic = f"flights.{abs(hash(request.node.nodeid))}"
    broker.create_topic(topic, partitions=2)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    made = Stream(broker, topic, catalog_in(tmp_path), tmp_path / "buffer")
    made.create_table()
    return made


# --- exactly once -----------------------------------------------------------------------------------------------------


def test_messages_become_batches_named_by_their_offsets(stream: Stream) -> None:
    stream.rows(range(5))
    stream.rows(range(100, 103), partition=1)

    stream.read(8)

    assert stream.batches == {
        f"{stream.topic}-0-000000000000-000000000004": [0, 1, 2, 3, 4],
        f"{stream.topic}-1-000000000000-000000000002": [100, 101, 102],
    }
    assert (stream.states[-1].lag, stream.states[-1].rows, stream.states[-1].epoch) == (0, 8, 1)


@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_is_killed_loses_and_repeats_nothing(stream: Stream, step: str) -> None:
    stream.rows(range(5))
    stream.rows(range(100, 103), partition=1)
    stream.killed_at(step)
    stream.rows(range(5, 9))

    stream.read(12)

    assert stream.values == [*range(9), 100, 101, 102]
    assert stream.states[-1].rows == 12


def test_kills_at_every_step_of_many_epochs(stream: Stream) -> None:
    for n, step in enumerate(STEPS * 2):
        stream.rows(range(10 * n, 10 * n + 10), partition=n % 2)
        stream.killed_at(step)

    stream.read(100)

    assert stream.values == list(range(100))


def test_a_repeated_epoch_leaves_a_complete_batch_as_it_is(stream: Stream) -> None:
    stream.rows(range(5))
    stream.killed_at("all-written")
    (file,) = stream.buffer.glob("batch_id=*/messages.parquet")
    before = file.stat().st_mtime_ns

    stream.rows([5])
    stream.read(6)

    assert file.stat().st_mtime_ns == before


def test_two_processes_share_a_topic_without_repeating_it(stream: Stream) -> None:
    with stream.running(), stream.running():
        for n in range(20):
            stream.rows(range(10 * n, 10 * n + 10), partition=n % 2)
        stream.wait(lambda: len(stream.values) >= 200)

    assert stream.values == list(range(200))


@pytest.mark.long
def test_a_process_that_slept_while_others_went_on_writes_nothing(stream: Stream) -> None:
    """Its number is free again in the log, because old entries are removed."""
    stream.rows(range(5))
    stream.read(5)
    slept = stream.source()

    def others_go_on(name: str) -> None:
        if name == "read" and not slept.stopped.is_set():
            slept.step = lambda _: None
            for n in range(1, 15):
                stream.rows(range(5 * n, 5 * n + 5))
                stream.read(5 * n + 5)

    slept.step = others_go_on
    stream.rows([999])
    with stream.running(slept):
        stream.wait(lambda: len(stream.values) >= 76)

    assert stream.values == [*range(75), 999]


@pytest.mark.long
def test_a_broker_that_restarts_delays_and_loses_nothing(stream: Stream) -> None:
    stream.rows(range(10))
    stream.read(10)
    with ExitStack() as outage:
        outage.enter_context(stream.broker.away())
        with stream.running():
            stream.wait_for(Reason.BROKER_AWAY)
            outage.close()
            stream.rows(range(10, 20))
            stream.wait(lambda: len(stream.values) >= 20)

    assert stream.values == list(range(20))


def test_aborted_transactions_are_not_read_and_do_not_count_as_lag(stream: Stream) -> None:
    producer = Producer({"bootstrap.servers": stream.broker.servers, "transactional.id": stream.topic, "log_level": 0})
    producer.init_transactions(30)
    for number, commit in ((1, True), (2, False), (3, True)):
        producer.begin_transaction()
        producer.produce(stream.topic, row(number), partition=0)
        producer.flush()
        producer.commit_transaction() if commit else producer.abort_transaction()

    with stream.running():
        stream.wait(lambda: len(stream.values) >= 2 and stream.states[-1].lag == 0)

    assert stream.values == [1, 3]


# --- what changes -----------------------------------------------------------------------------------------------------


def test_partitions_that_are_added_are_read_from_their_start(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lethe_inlet.source.DESCRIBE_SECONDS", 0.0)
    stream.rows(range(3))
    with stream.running():
        stream.wait(lambda: len(stream.values) == 3)
        admin = stream.broker.admin
        admin.create_partitions([NewPartitions(stream.topic, 3)])[stream.topic].result(30)
        stream.rows(range(10, 13), partition=2)
        stream.wait(lambda: len(stream.values) >= 6)

    assert stream.values == [0, 1, 2, 10, 11, 12]


def test_reading_may_begin_at_the_end(stream: Stream) -> None:
    stream.rows(range(5))
    with stream.running(stream.source(startingOffsets="Latest")):
        stream.wait(lambda: bool(stream.states) and stream.states[-1].epoch == 0)
        stream.rows([7])
        stream.wait(lambda: bool(stream.values))

    assert stream.values == [7]


def test_an_epoch_ends_when_it_is_large_enough(stream: Stream) -> None:
    stream.produce(json.dumps({"v": n, "pad": "x" * 50_000}).encode() for n in range(20))

    stream.read(20, unknownFields="Ignore", epoch={"maxSeconds": 3600, "maxBytes": 1_000_000})

    assert stream.values == list(range(20))


def test_messages_that_are_no_rows_are_set_aside_with_offset_and_reason(stream: Stream) -> None:
    stream.produce([row(1), b"{", None, row(4), b'{"v": "x"}'])

    stream.read(2)

    assert stream.values == [1, 4]
    assert [(r["offset"], r["reason"].partition(":")[0]) for r in stream.refused] == [
        (1, "UnreadableMessage"),
        (2, "NoValue"),
        (4, "SchemaMismatch"),
    ]
    assert (stream.states[-1].rows, stream.states[-1].refused_messages) == (2, 3)


ENDLESS = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "v", "type": "long"}, {"name": "pad", "type": {"type": "array", "items": "null"}}],
}


def endless_rows(*numbers: int) -> list[bytes]:
    """Avro messages: of each number a row, of a number below zero one that takes all memory of its reader."""
    rows = []
    for number in numbers:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(ENDLESS), {"v": number, "pad": []})
        rows.append(out.getvalue() if number >= 0 else out.getvalue()[:-1] + poison.endless_array())
    return rows


def deep_rows(*numbers: int) -> list[bytes]:
    """JSON messages: of each number a row, of a number below zero one with deep nesting."""
    return [row(n) if n >= 0 else b'{"v":' + b"[" * 100_000 + b"]" * 100_000 + b"}" for n in numbers]


@pytest.mark.parametrize(
    ("made", "of", "why"),
    [
        (deep_rows, {"format": "JSON"}, "it nests deeper than 100 levels"),
        (
            endless_rows,
            {"format": "Avro", "schema": json.dumps(ENDLESS), "unknownFields": "Ignore"},
            "decoding it takes more than 64 MiB of memory",
        ),
    ],
    ids=["nesting", "memory"],
)
def test_a_poisonous_message_in_each_partition_is_set_aside_once_and_the_others_arrive(
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[..., list[bytes]],
    of: dict[str, Any],
    why: str,
) -> None:
    """Also if the process is killed while it has them: the next one says the same of them, and reads on behind them."""
    monkeypatch.setattr("lethe_inlet.decoding.limits_here", lambda: Limits(memory_bytes=64 * 1024**2))
    stream.spec = of
    for partition in (0, 1):
        numbers = range(10 * partition, 10 * partition + 4)
        stream.produce(made(*numbers, -1, 10 * partition + 4), partition)
    stream.killed_at("written")
    stream.read(10)
    refused = stream.refused

    stream.produce(made(5))
    stream.read(11)

    assert stream.values == [*range(6), *range(10, 15)]
    assert [(r["partition"], r["offset"], r["reason"]) for r in refused] == [
        (0, 4, f"FileTooCostly: {why}"),
        (1, 4, f"FileTooCostly: {why}"),
    ]
    assert stream.refused == refused
    assert sorted(stream.batches) == [
        f"{stream.topic}-0-{0:012d}-{5:012d}",
        f"{stream.topic}-0-{6:012d}-{6:012d}",
        f"{stream.topic}-1-{0:012d}-{5:012d}",
    ]
    stream.wait(lambda: stream.states[-1].lag == 0)
    assert (stream.states[-1].rows, stream.states[-1].refused_messages) == (11, 2)


# --- what stops it ----------------------------------------------------------------------------------------------------


def test_messages_that_expired_are_reported_and_not_skipped(stream: Stream) -> None:
    stream.rows(range(5))
    stream.read(5)
    stream.rows(range(5, 20))
    stream.delete_before(12)

    with stream.running():
        state = stream.wait_for(Reason.OFFSETS_LOST)

    assert "7 offsets have expired" in state.message
    assert f"{stream.topic}/0: 5 to 11" in state.message
    assert stream.values == list(range(5))


def test_expired_messages_are_skipped_and_counted_when_the_dataset_says_so(stream: Stream) -> None:
    stream.rows(range(5))
    stream.read(5)
    stream.rows(range(5, 20))
    stream.delete_before(12)

    stream.read(13, lostOffsets="Skip")
    stream.rows([20])
    stream.read(14, lostOffsets="Skip")

    assert stream.values == [*range(5), *range(12, 21)]
    assert stream.states[-1].lost_offsets == 7


def test_messages_that_expire_twice_before_the_next_epoch_are_all_counted(stream: Stream) -> None:
    stream.rows(range(5))
    stream.read(5)
    stream.rows(range(5, 12))
    stream.delete_before(12)
    source = stream.source(lostOffsets="Skip")
    shown = source.report

    def more_expire(state: SourceStatus) -> None:
        """Messages of a transaction are not read before its end, so these expire for certain before the inlet has them."""
        shown(state)
        if state.lag != 0 or source.report is shown:
            return  # the first offsets are not skipped yet
        source.report = shown
        producer = Producer(
            {"bootstrap.servers": stream.broker.servers, "transactional.id": stream.topic, "log_level": 0}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(12, 15):
            producer.produce(stream.topic, row(number), partition=0)
        producer.flush()
        stream.delete_before(15)
        producer.commit_transaction()
        stream.rows([20])

    source.report = more_expire
    with stream.running(source):
        stream.wait(lambda: len(stream.values) >= 6)

    assert stream.values == [*range(5), 20]
    stream.wait(lambda: stream.states[-1].rows == 6)
    assert stream.states[-1].lost_offsets == 10


def test_messages_of_a_recorded_epoch_may_expire_too(stream: Stream) -> None:
    stream.rows(range(10))
    stream.killed_at("recorded")
    stream.delete_before(4)

    with stream.running():
        assert "4 offsets have expired" in stream.wait_for(Reason.OFFSETS_LOST).message
    stream.read(6, lostOffsets="Skip")

    assert stream.values == list(range(4, 10))
    assert (stream.states[-1].lost_offsets, stream.states[-1].rows) == (4, 6)


def test_a_topic_that_was_created_again_is_not_read(stream: Stream) -> None:
    stream.rows(range(5))
    stream.read(5)
    admin = stream.broker.admin
    admin.delete_topics([stream.topic])[stream.topic].result(30)
    stream.wait(lambda: stream.topic not in admin.list_topics(timeout=10).topics)
    stream.broker.create_topic(stream.topic, partitions=2)
    stream.rows(range(100, 120))

    with stream.running():
        state = stream.wait_for(Reason.SOURCE_REPLACED)

    assert "deleted and created again" in state.message
    assert stream.values == list(range(5))


def test_a_missing_topic_is_named(stream: Stream) -> None:
    with stream.running(stream.source(topics=["none"])):
        assert "none" in stream.wait_for(Reason.TOPIC_NOT_FOUND).message


def test_a_topic_outside_the_boundary_is_not_read(stream: Stream) -> None:
    stream.rows(range(3))
    stream.allowed = ("main/other.*",)
    with stream.running():
        message = stream.wait_for(Reason.OUTSIDE_BOUNDARY).message
    assert f"spec.source.kafka.topics main/{stream.topic} is outside the boundary topics of namespace ns" in message
    assert stream.values == []

    stream.allowed = (f"main/{stream.topic}",)
    stream.read(3)


def test_credentials_are_used_and_refused_ones_reported(stream: Stream) -> None:
    stream.rows(range(3))
    sasl = {
        "bootstrap.servers": f"127.0.0.1:{stream.broker.sasl_port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
    }
    stream.properties = {**sasl, "sasl.username": USER, "sasl.password": "wrong-horse"}
    with stream.running():
        state = stream.wait_for(Reason.SOURCE_DENIED)
        assert "wrong-horse" not in state.message

    stream.properties = {**sasl, "sasl.username": USER, "sasl.password": PASSWORD}
    stream.read(3)

    assert stream.values == [0, 1, 2]


def test_nothing_is_read_before_the_table_is_there(stream: Stream) -> None:
    stream.catalog.drop_table("air.flights")
    stream.rows(range(3))
    with stream.running():
        stream.wait_for(Reason.TABLE_NOT_READY)
    assert not stream.buffer.exists()

    stream.create_table()
    stream.read(3)

    assert stream.values == [0, 1, 2]


def test_a_damaged_log_stops_reading(stream: Stream) -> None:
    stream.rows(range(3))
    stream.read(3)
    (stream.buffer / "_inlet" / "epoch-000000000001.json").write_text("{}")

    with stream.running():
        state = stream.wait_for(Reason.EPOCH_LOG_UNREADABLE)

    assert "epoch-000000000001.json" in state.message
