"""Epochs: which offsets of which partitions become which batches. Pure.

An epoch takes each partition a step further. Its document in the epoch log says from where to where, before any of its batches is
written, so a process that repeats the epoch writes the same batches.

The Dataset's status shows what is known of the source, and why it is not read.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaError
from lethe.base.errors import TransientError, Verdict
from lethe.contract.status import SourceStatus
from lethe_operator.brokers import DENIED, NOT_FOUND
from lethe_operator.reasons import Reason


class Trouble(TransientError):
    """Nothing is read until its cause is gone. Nothing is lost meanwhile, unless the message says so."""


def of_kafka(error: KafkaError, cluster: str, topics: str) -> Trouble:
    """What an error of librdkafka means."""
    name = f"Kafka cluster {cluster}"
    code = error.code()
    if code in DENIED:
        return Trouble(
            Reason.SOURCE_DENIED,
            f"{name} denies access to {topics} ({error.name()}). Correct the credentials in the chart's value inlet.clusters, or "
            "allow them to describe and read these topics.",
        )
    if code in NOT_FOUND:
        return Trouble(
            Reason.TOPIC_NOT_FOUND,
            f"{name} lacks one of the topics {topics} ({error.name()}). Create it, or correct spec.source.kafka.topics.",
        )
    return Trouble(
        Reason.BROKER_AWAY,
        f"{name} does not answer ({error.name()}). Reading goes on from the same offsets when it does.",
    )


def no_cluster(cluster: str) -> Trouble:
    """The error if no configured cluster has the name in spec.source.kafka.cluster."""
    return Trouble(
        Reason.CLUSTER_NOT_FOUND,
        f"There is no Kafka cluster {cluster} for this namespace. Add it to the chart's value inlet.clusters, or correct "
        "spec.source.kafka.cluster.",
    )


def outside(message: str) -> Trouble:
    """The error if the cluster is not open to a topic of the Dataset; `message` names the topic."""
    return Trouble(Reason.OUTSIDE_BOUNDARY, f"{message} Nothing is read.")


def other_cluster(cluster: str, log_uri: str) -> Trouble:
    """The error if the cluster has another id than the one in the epoch log."""
    return Trouble(
        Reason.SOURCE_REPLACED,
        f"{cluster} is another Kafka cluster than the one that was read before: offsets of one mean nothing in the other. Name "
        f"the former cluster, or use another Dataset. The epoch log is {log_uri}.",
    )


def other_topic(topic: str, log_uri: str) -> Trouble:
    """The error if a topic has another id than in the epoch log, or lacks offsets that were read before."""
    return Trouble(
        Reason.SOURCE_REPLACED,
        f"Topic {topic} was deleted and created again, or has lost messages: it is not the one that was read before. Its offsets "
        f"name batches that exist already. Use a topic of another name. The epoch log is {log_uri}.",
    )


def lost(count: int, where: str) -> Trouble:
    """The error if offsets expired in Kafka before they were read, unless spec.source.kafka.lostOffsets is Skip."""
    return Trouble(
        Reason.OFFSETS_LOST,
        f"{count} offsets have expired in Kafka before they were read ({where}). Nothing more is read. To go on behind them, set "
        "spec.source.kafka.lostOffsets: Skip.",
    )


NO_TABLE: Final = Trouble(
    Reason.TABLE_NOT_READY,
    "The table does not exist, or no run has claimed it yet. Reading begins when the Dataset is ready and has its table.",
)


STARTING: Final = SourceStatus(reason=Reason.SOURCE_STARTING, message="", rows=0, refused_messages=0, lost_offsets=0)


def failing(state: SourceStatus, verdict: Verdict) -> SourceStatus:
    """A copy with a reason and a message; the epoch, the lag and the counts stay."""
    return state.model_copy(update={"reason": str(verdict.reason), "message": verdict.message})


def reading(state: SourceStatus) -> SourceStatus:
    """A copy with the reason SourceRead and no message; the epoch, the lag and the counts stay."""
    return failing(state, Verdict(Reason.SOURCE_READ, ""))


VERSION: Final = 1
# A batch id has at most 256 characters, and is part of the names of objects.
DIGITS: Final = 12


@dataclass(frozen=True, order=True)
class KafkaPartition:
    """A partition of a topic."""

    topic: str
    number: int


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of a partition, from the first to before the end."""

    first: int
    end: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read, because the end is not after the first offset."""
        return self.end <= self.first


@dataclass(frozen=True)
class Counts:
    """What was read of a source since its first epoch."""

    rows: int = 0
    """Rows in batches."""
    refused: int = 0
    """Messages in `_refused/`."""
    lost: int = 0
    """Offsets that the broker no longer had when they were due."""

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.rows + other.rows, self.refused + other.refused, self.lost + other.lost)

    def as_document(self) -> dict[str, int]:
        """The JSON object that records a complete epoch in the log."""
        return {"rows": self.rows, "refused": self.refused, "lost": self.lost}


NOTHING: Final = Counts()


@dataclass(frozen=True)
class Epoch:
    """One entry of the epoch log."""

    number: int
    """Counts up from 0, which only says where reading begins."""
    cluster: str
    """The id of the Kafka cluster, which its brokers report."""
    topics: Mapping[str, str]
    """The id of each topic, which changes when a topic is created again under its name."""
    ranges: Mapping[KafkaPartition, OffsetRange]
    """Of every partition that was ever read. A partition without new messages has an empty range."""

    @property
    def due(self) -> dict[KafkaPartition, OffsetRange]:
        """The partitions with offsets to read."""
        return _without_empty(self.ranges)

    def following(self, ends: Mapping[KafkaPartition, int]) -> "Epoch":
        """The next epoch, which reads each of these partitions up to this offset."""
        ranges = {p: OffsetRange(r.end, ends.get(p, r.end)) for p, r in self.ranges.items()}
        return Epoch(self.number + 1, self.cluster, self.topics, ranges)

    def with_partitions(self, first: Mapping[KafkaPartition, int], topics: Mapping[str, str]) -> "Epoch":
        """This epoch, which also knows partitions that are new, with the offset where reading begins."""
        new = {p: OffsetRange(o, o) for p, o in first.items() if p not in self.ranges}
        return Epoch(self.number, self.cluster, {**topics, **self.topics}, {**self.ranges, **new})


def batch_id(partition: KafkaPartition, offsets: OffsetRange) -> str:
    """The id of the batch with these offsets: topic, partition, first and last offset."""
    return f"{partition.topic}-{partition.number}-{offsets.first:0{DIGITS}d}-{offsets.end - 1:0{DIGITS}d}"


class UnreadableLog(ValueError):
    """An entry of the epoch log is not one."""


def encode(epoch: Epoch) -> bytes:
    """The JSON of an epoch for the log; topics and ranges are sorted, so equal epochs have equal bytes."""
    document = {
        "version": VERSION,
        "epoch": epoch.number,
        "cluster": epoch.cluster,
        "topics": dict(sorted(epoch.topics.items())),
        "ranges": [[p.topic, p.number, r.first, r.end] for p, r in sorted(epoch.ranges.items())],
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def decode(content: bytes, uri: str) -> Epoch:
    """Read an entry of the epoch log.

    Raises:
        UnreadableLog: Which names the file.
    """
    try:
        document: Any = json.loads(content)
        if document["version"] != VERSION:
            raise UnreadableLog(
                f"{uri} has version {document['version']!r}, expected {VERSION}. A newer version of Lethe wrote it; upgrade."
            )
        ranges = {
            KafkaPartition(str(t), int(n)): OffsetRange(int(first), int(end)) for t, n, first, end in document["ranges"]
        }
        topics = {str(k): str(v) for k, v in document["topics"].items()}
        return Epoch(int(document["epoch"]), str(document["cluster"]), topics, ranges)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        if isinstance(e, UnreadableLog):
            raise
        raise UnreadableLog(f"{uri} is not an entry of an epoch log. Restore it from a version of the object.") from e


@dataclass(frozen=True)
class Watermarks:
    """Which offsets of a partition the broker has."""

    low: int
    """The first offset that it still has."""
    high: int
    """The offset that the next message will get."""


@dataclass(frozen=True)
class Gaps:
    """Where the broker does not have what comes next."""

    expired: Mapping[KafkaPartition, OffsetRange] = field(default_factory=dict)
    """The offsets that have expired before they were read."""
    replaced: tuple[KafkaPartition, ...] = ()
    """Partitions that end before the offset that comes next: they are not the ones that were read."""


def gaps(next_offsets: Mapping[KafkaPartition, int], watermarks: Mapping[KafkaPartition, Watermarks]) -> Gaps:
    """Compare the offsets that come next with what the broker has."""
    expired: dict[KafkaPartition, OffsetRange] = {}
    replaced: list[KafkaPartition] = []
    for partition, offset in sorted(next_offsets.items()):
        watermark = watermarks.get(partition)
        if watermark is None:
            continue
        if offset < watermark.low:
            expired[partition] = OffsetRange(offset, watermark.low)
        elif offset > watermark.high:
            replaced.append(partition)
    return Gaps(expired, tuple(replaced))


def split(
    due: Mapping[KafkaPartition, OffsetRange], watermarks: Mapping[KafkaPartition, Watermarks]
) -> tuple[dict[KafkaPartition, OffsetRange], dict[KafkaPartition, OffsetRange]]:
    """What is due, as the offsets that the broker still has, and those that have expired."""
    low = {p: min(max(r.first, watermarks[p].low), r.end) if p in watermarks else r.first for p, r in due.items()}
    left = {p: OffsetRange(low[p], r.end) for p, r in due.items()}
    expired = {p: OffsetRange(r.first, low[p]) for p, r in due.items()}
    return _without_empty(left), _without_empty(expired)


def _without_empty(ranges: Mapping[KafkaPartition, OffsetRange]) -> dict[KafkaPartition, OffsetRange]:
    return {p: r for p, r in sorted(ranges.items()) if not r.is_empty}


def lag_of(next_offsets: Mapping[KafkaPartition, int], watermarks: Mapping[KafkaPartition, Watermarks]) -> int:
    """How many offsets the broker has that were not read."""
    return sum(max(0, w.high - max(next_offsets.get(p, w.low), w.low)) for p, w in watermarks.items())


def ends_of(epoch: Epoch, topics: Iterable[str]) -> dict[KafkaPartition, int]:
    """The offset that comes next in each partition of these topics."""
    wanted = frozenset(topics)
    return {p: r.end for p, r in epoch.ranges.items() if p.topic in wanted}


class TopicMessage(NamedTuple):
    """One message of a partition. A tuple, because there are hundreds of thousands each second."""

    offset: int
    # Milliseconds since 1970, by the clock of the producer or the broker; 0: unknown.
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    """None: a message without a value, which deletes its key in a compacted topic."""


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A message that is not a row of the table."""

    message: TopicMessage
    reason: str
    """Without values of the message."""


@dataclass(frozen=True)
class Decoded:
    """The rows of messages."""

    # With the columns of the table, without the batch column.
    rows: pa.Table
    refused: Sequence[RefusedMessage]


def refusals(partition: KafkaPartition, refused: Sequence[RefusedMessage]) -> bytes:
    """The file of the messages of a batch that were refused: a line of JSON for each."""
    lines = (
        {
            "topic": partition.topic,
            "partition": partition.number,
            "offset": r.message.offset,
            "timestampMs": r.message.timestamp_ms,
            "reason": r.reason,
            "key": _text(r.message.key),
            "value": _text(r.message.value),
        }
        for r in refused
    )
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _text(content: bytes | None) -> str | None:
    """In Base64, because it may be anything."""
    return None if content is None else base64.b64encode(content).decode()
