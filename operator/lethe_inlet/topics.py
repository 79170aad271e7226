"""Reads partitions of topics from given offsets. I/O: Kafka, through librdkafka.

No group of consumers is used, and no offset is stored in Kafka: the epoch log says what comes next.
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from lethe.contract.dataset import EpochSpec
from lethe_operator.brokers import DENIED

from lethe_inlet.epochs import KafkaPartition, OffsetRange, TopicMessage, Watermarks, of_kafka
from lethe_inlet.settings import Cluster

_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.2
_AT_ONCE: Final = 10_000
# What a message takes in memory besides its key and value.
_OVERHEAD_BYTES: Final = 200
# What librdkafka fetches ahead.
_QUEUED_KBYTES: Final = 16 * 1024


class OffsetExpired(Exception):
    """The broker does not have an offset that was to be read."""


@dataclass(frozen=True)
class TopicsDescription:
    """Topics as the brokers describe them."""

    cluster: str
    """Its id."""
    topics: Mapping[str, str]
    """The id of each topic, by its name."""
    partitions: frozenset[KafkaPartition]


@dataclass
class Read:
    """Messages, and up to which offset each partition was read."""

    messages: dict[KafkaPartition, list[TopicMessage]] = field(default_factory=dict)
    ends: dict[KafkaPartition, int] = field(default_factory=dict)
    bytes: int = 0

    def add(self, partition: KafkaPartition, messages: Sequence[TopicMessage]) -> None:
        """Add messages that follow those of the partition."""
        if messages:
            self.messages.setdefault(partition, []).extend(messages)
            self.ends[partition] = messages[-1].offset + 1
            self.bytes += sum(len(m.key or b"") + len(m.value or b"") + _OVERHEAD_BYTES for m in messages)


@dataclass
class _Arrived:
    """What has arrived of one partition."""

    messages: list[TopicMessage] = field(default_factory=list)
    end: int | None = None
    """The offset that comes next, if the partition ends here; None: it may go on."""


class Topics:
    """The topics of one source. Not for several threads."""

    def __init__(self, name: str, cluster: Cluster, topics: Iterable[str], stopped: threading.Event) -> None:
        self._name = name
        self._topics = tuple(topics)
        self._stopped = stopped
        self._refused: KafkaError | None = None  # by a connection; a request then only times out
        given: dict[str, Any] = {"log_level": 0, **cluster.properties, "error_cb": self._note}
        self._admin = AdminClient(given)
        self._consumer = Consumer(
            {
                "queued.max.messages.kbytes": _QUEUED_KBYTES,
                **given,
                "group.id": "lethe-inlet",  # required, and never used
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            }
        )
        self._assigned: dict[KafkaPartition, int] = {}  # the next offset of each

    def close(self) -> None:
        """Close the connections of the consumer. No offset is committed to Kafka."""
        self._consumer.close()

    def describe(self) -> TopicsDescription:
        """Describe it.

        Raises:
            Trouble: Nothing is read until its cause is gone.
        """
        try:
            topics = self._admin.describe_topics(TopicCollection(list(self._topics)), request_timeout=_SECONDS)
            described = {name: future.result() for name, future in topics.items()}
            cluster = self._admin.list_topics(self._topics[0], timeout=_SECONDS).cluster_id or ""
        except KafkaException as e:
            raise self._trouble(e) from None
        return TopicsDescription(
            cluster,
            {name: str(d.topic_id) for name, d in described.items()},
            frozenset(KafkaPartition(name, p.id) for name, d in described.items() for p in d.partitions),
        )

    def watermarks(self, partitions: Iterable[KafkaPartition], known: bool = False) -> dict[KafkaPartition, Watermarks]:
        """Which offsets the broker has.

        Args:
            known: As the last fetches reported, without a request; a partition that was not fetched is left out.

        Raises:
            Trouble: Nothing is read until its cause is gone.
        """
        watermarks_by_partition: dict[KafkaPartition, Watermarks] = {}
        for partition in partitions:
            place = TopicPartition(partition.topic, partition.number)
            try:
                answer = self._consumer.get_watermark_offsets(place, timeout=_SECONDS, cached=known)
            except KafkaException as e:
                raise self._trouble(e) from None
            if answer is not None and answer[1] >= 0:
                watermarks_by_partition[partition] = Watermarks(max(0, answer[0]), answer[1])
        return watermarks_by_partition

    def read_on(self, offsets: Mapping[KafkaPartition, int], limits: EpochSpec) -> Read:
        """Read from these offsets until the limits of an epoch, or for a moment if there is nothing.

        Raises:
            OffsetExpired: The broker does not have an offset that was to be read.
            Trouble: Nothing is read until its cause is gone.
        """
        if self._assigned != dict(offsets):
            self._assign(offsets)
        # Should anything fail, what was fetched is dropped and read again.
        assigned, self._assigned = self._assigned, {}
        read, until = Read(), 0.0
        while not self._stopped.is_set():
            for partition, arrived in self._next():
                read.add(partition, arrived.messages)
                if arrived.end is not None and arrived.end > read.ends.get(partition, assigned.get(partition, 0)):
                    read.ends[partition] = arrived.end  # what is left are marks of transactions
            now = time.monotonic()
            if read.messages and not until:
                until = now + limits.max_seconds
            if (until and now >= until) or read.bytes >= limits.max_bytes or not read.messages:
                break
        self._assigned = {**assigned, **read.ends}
        return read

    def read_again(self, ranges: Mapping[KafkaPartition, OffsetRange]) -> Read:
        """Read exactly these offsets. Offsets that the broker no longer has are left out.

        Raises:
            OffsetExpired: The broker does not have an offset that was to be read.
            Trouble: Nothing is read until its cause is gone.
        """
        self._assign({p: r.first for p, r in ranges.items()})
        read, left = Read(), set(ranges)
        last = time.monotonic()
        while left and not self._stopped.is_set():
            for partition, arrived in self._next():
                last, end = time.monotonic(), ranges[partition].end
                read.add(partition, [m for m in arrived.messages if m.offset < end])
                if (arrived.end or 0) >= end or (arrived.messages and arrived.messages[-1].offset + 1 >= end):
                    left.discard(partition)
            if time.monotonic() - last > _SECONDS:
                raise of_kafka(KafkaError(KafkaError._TIMED_OUT), self._name, ", ".join(self._topics))
        self._assigned = {}
        return read

    def _assign(self, offsets: Mapping[KafkaPartition, int]) -> None:
        places = [TopicPartition(p.topic, p.number, o) for p, o in sorted(offsets.items())]
        try:
            self._consumer.assign(places)
        except KafkaException as e:
            raise self._trouble(e) from None
        self._assigned = dict(offsets)

    def _next(self) -> Iterable[tuple[KafkaPartition, "_Arrived"]]:
        """What has arrived of each partition.

        Raises:
            OffsetExpired: The broker does not have an offset that was to be read.
            Trouble: Nothing is read until its cause is gone.
        """
        try:
            messages = self._consumer.consume(_AT_ONCE, timeout=_POLL_SECONDS)
        except KafkaException as e:
            raise self._trouble(e) from None
        arrived: dict[tuple[str, int], _Arrived] = {}
        for message in messages:
            error, key = message.error(), (message.topic(), message.partition())
            if error is None:
                of = arrived.get(key) or arrived.setdefault(key, _Arrived())
                offset, sent = message.offset(), message.timestamp()[1]
                of.messages.append(TopicMessage(offset, max(0, sent), message.key(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                arrived.setdefault(key, _Arrived()).end = message.offset()
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise OffsetExpired
            else:
                raise of_kafka(error, self._name, ", ".join(self._topics))
        return [(KafkaPartition(*key), of) for key, of in arrived.items()]

    def _note(self, error: KafkaError) -> None:
        if error.code() in DENIED:
            self._refused = error

    def _trouble(self, error: KafkaException) -> Exception:
        self._admin.poll(0)  # calls `_note`
        cause = error.args[0]
        known = self._refused or (cause if isinstance(cause, KafkaError) else KafkaError(KafkaError._FAIL))
        return of_kafka(known, self._name, ", ".join(self._topics))
