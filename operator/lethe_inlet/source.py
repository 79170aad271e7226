"""Reads the topics of one Dataset, epoch by epoch, and writes their batches into the buffer. I/O: Kafka, the buffer, the table.

An epoch has four steps: read messages, record the epoch in the log, write its batches, record that it is complete. A process
that ends between them leaves an epoch whose offsets are fixed; the next process reads those offsets again and writes the same
batches.

Invariants: of two processes that write the same epoch to the log in `_inlet/`, only one succeeds, and the other one reads it. So
each offset is part of one batch, however many processes read the topic. In the buffer, nothing that exists is overwritten, and a
batch is complete when `_SUCCESS` is there, which is written last.
"""

import io
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from lethe import ledger_store
from lethe.base import names
from lethe.base.errors import LetheError, Verdict
from lethe.base.names import batch_folder
from lethe.contract.dataset import KafkaSource
from lethe.contract.settings import LostOffsets, StartingOffsets
from lethe.contract.status import SourceStatus
from lethe.guards.boundary import outside_topics
from lethe.iceberg import catalogs
from lethe.iceberg.catalogs import TableIsView
from lethe.iceberg.facts import observe
from lethe.ingest.checking import columns_of
from lethe.ledger.ledger import get_many
from lethe.logs import about
from lethe.storage.object_store import FolderListing, ObjectStore, open_store
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from lethe_inlet import epochs
from lethe_inlet.decoding import Decoder, RowTarget, Schemas
from lethe_inlet.epochs import (
    STARTING,
    Counts,
    Decoded,
    Epoch,
    KafkaPartition,
    OffsetRange,
    UnreadableLog,
    Watermarks,
    batch_id,
    decode,
    encode,
    ends_of,
    failing,
    gaps,
    lag_of,
    reading,
    refusals,
    split,
)
from lethe_inlet.settings import Cluster
from lethe_inlet.topics import OffsetExpired, Read, Topics, TopicsDescription

DATA_FILE: Final = "messages.parquet"
REFUSED_FOLDER: Final = "_refused"
REFUSED_FILE: Final = "messages.jsonl"


@dataclass(frozen=True)
class BufferWriter:
    """The batches of one Dataset's buffer."""

    store: ObjectStore
    buffer_uri: str
    batch_column: str

    def write(self, partition: KafkaPartition, offsets: OffsetRange, decoded: Decoded) -> Counts:
        """Write the rows of a partition as a batch, and the refused messages beside the buffer's batches.

        Raises:
            StoreError: A store refused a request or did not answer.
            InputError: `UnsupportedStorage`.
        """
        folder = batch_folder(self.batch_column, batch_id(partition, offsets))
        if decoded.refused:
            uri = f"{self._root}/{REFUSED_FOLDER}/{folder}/{REFUSED_FILE}"
            self.store.put_if_absent(uri, refusals(partition, decoded.refused))
        if decoded.rows.num_rows:
            self.store.put_if_absent(f"{self._root}/{folder}/{DATA_FILE}", _parquet(decoded.rows))
            self.store.put_if_absent(f"{self._root}/{folder}/{names.SUCCESS_MARKER}", b"")
        return Counts(rows=decoded.rows.num_rows, refused=len(decoded.refused))

    def are_there(self, ids: Iterable[str]) -> frozenset[str]:
        """Which of these batches are complete in the buffer.

        Raises:
            StoreError: A store refused a request or did not answer.
        """
        return frozenset(i for i in ids if self.store.head(f"{self._folder(i)}/{names.SUCCESS_MARKER}") is not None)

    @property
    def _root(self) -> str:
        return self.buffer_uri.rstrip("/")

    def _folder(self, id: str) -> str:
        return f"{self._root}/{batch_folder(self.batch_column, id)}"


def _parquet(rows: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(rows, file, compression="zstd", write_page_index=False)
    return file.getvalue()


FOLDER: Final = "_inlet"
_DIGITS: Final = 12
_EPOCH: Final = "epoch-"
_DONE: Final = "done-"
# Entries that are kept below the newest one, for people who look.
KEPT: Final = 10


class EpochLog:
    """The log of one Dataset."""

    def __init__(self, store: ObjectStore, buffer_uri: str) -> None:
        self._folder = FolderListing(store, f"{buffer_uri.rstrip('/')}/{FOLDER}")

    @property
    def uri(self) -> str:
        """The folder `_inlet` of the buffer, without a slash at its end."""
        return self._folder.uri

    def newest(self) -> Epoch | None:
        """The epoch with the highest number; None: nothing was ever read.

        Raises:
            UnreadableLog: An entry of the epoch log is not one.
            StoreError: A store refused a request or did not answer.
        """
        while True:
            numbers = self._numbers(_EPOCH)
            if not numbers:
                return None
            name = _name(_EPOCH, max(numbers))
            content = self._folder.read(name)
            if content is not None:
                return decode(content, f"{self.uri}/{name}")
            # Another process has removed it after it wrote many others: look again.

    def create(self, epoch: Epoch) -> bool:
        """Add an epoch.

        Returns:
            Whether it is the newest one. If not, another process reads the topic.

        Raises:
            StoreError: A store refused a request or did not answer.
        """
        if not self._folder.create(_name(_EPOCH, epoch.number), encode(epoch)):
            return False
        if max(self._numbers(_EPOCH)) == epoch.number:
            return True
        # This process was stopped for so long that others have removed the entry of this number.
        self._folder.delete(_name(_EPOCH, epoch.number))
        return False

    def counts(self, number: int) -> Counts | None:
        """What was read up to this epoch; None: the epoch is not complete.

        Raises:
            UnreadableLog: An entry of the epoch log is not one.
            StoreError: A store refused a request or did not answer.
        """
        name = _name(_DONE, number)
        content = self._folder.read(name)
        if content is None:
            return None
        try:
            document = json.loads(content)
            return Counts(int(document["rows"]), int(document["refused"]), int(document["lost"]))
        except (ValueError, KeyError, TypeError) as e:
            raise UnreadableLog(f"{self.uri}/{name} does not count what was read. Delete it.") from e

    def complete(self, number: int, counts: Counts) -> None:
        """Record that all batches of an epoch are written, and remove old entries.

        Raises:
            StoreError: A store refused a request or did not answer.
        """
        self._folder.create(_name(_DONE, number), (json.dumps(counts.as_document()) + "\n").encode())
        for prefix in (_EPOCH, _DONE):
            for old in self._numbers(prefix):
                if old < number - KEPT:
                    self._folder.delete(_name(prefix, old))

    def _numbers(self, prefix: str) -> list[int]:
        names = (n.removeprefix(prefix).removesuffix(".json") for n in self._folder.names(prefix))
        return [int(n) for n in names if n.isdigit()]


def _name(prefix: str, number: int) -> str:
    return f"{prefix}{number:0{_DIGITS}d}.json"


log = logging.getLogger(__name__)

# Partitions that were added are found within this time.
DESCRIBE_SECONDS: Final = 30.0
# Pauses after the first, second, … failure in a row.
PAUSES_SECONDS: Final = (1.0, 2.0, 5.0, 15.0)

Step = Callable[[str], None]


def no_step(_name: str) -> None:
    """Where tests kill the process."""


@dataclass
class TopicSource:
    """The topics of one Dataset."""

    dataset: Dataset
    kafka: KafkaSource
    clusters: Callable[[], Mapping[str, Cluster]]
    report: Callable[[SourceStatus], None]
    stopped: threading.Event = field(default_factory=threading.Event)
    step: Step = no_step
    state: SourceStatus = STARTING

    def run(self) -> None:
        """Read until stopped. Failures are reported and tried again."""
        with about(namespace=self.dataset.meta.namespace, dataset=self.dataset.meta.name):
            self._run()

    def _run(self) -> None:
        failures = 0
        while not self.stopped.is_set():
            before = self.state.epoch
            try:
                self._read()
            except Exception as e:
                failure = _failure(e)
                if (failure.reason, failure.message) != (self.state.reason, self.state.message):
                    log.warning("%s: %s", self.dataset.claim, failure)
                self._show(failing(self.state, failure))
            failures = 0 if self.state.epoch != before else failures + 1
            self.stopped.wait(PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)])

    def _show(self, state: SourceStatus) -> None:
        self.state = state
        self.report(state)

    def _read(self) -> None:
        if self.kafka.suspend:
            suspended = Verdict(Reason.SOURCE_SUSPENDED, "spec.source.kafka.suspend is true. Nothing is read.")
            self._show(failing(self.state, suspended))
            self.stopped.wait(PAUSES_SECONDS[-1])
            return
        cluster = self.clusters().get(self.kafka.cluster)
        if cluster is None:
            raise epochs.no_cluster(self.kafka.cluster)
        outside = outside_topics(cluster.topics, self.kafka.cluster, self.kafka.topics)
        if outside is not None:
            raise epochs.outside(outside.message(self.dataset.meta.namespace))
        schemas = Schemas(cluster.schema_registry) if cluster.schema_registry is not None else None
        topics = Topics(self.kafka.cluster, cluster, self.kafka.topics, self.stopped)
        try:
            _TopicReading(self, topics, Decoder(self.kafka, schemas)).run()
        finally:
            topics.close()


class _TopicReading:
    """Epoch after epoch with one connection."""

    def __init__(self, source: TopicSource, topics: Topics, decoder: Decoder) -> None:
        self._source = source
        self._topics = topics
        self._decoder = decoder
        spec = source.dataset.spec
        self._properties = catalogs.properties(spec.table.catalog)
        store: ObjectStore = open_store(spec.buffer.uri, self._properties)
        self._log = EpochLog(store, spec.buffer.uri)
        self._batches = BufferWriter(store, spec.buffer.uri, spec.batch_column)
        self._described: tuple[float, TopicsDescription] | None = None
        self._expired: Counter[KafkaPartition] = (
            Counter()
        )  # offsets that were skipped since the last epoch with the partition

    def run(self) -> None:
        """Read one epoch and write its batches.

        Raises:
            Trouble: And other errors, after which reading begins again.
        """
        epoch, counts = self._begin()
        offsets = ends_of(epoch, self._source.kafka.topics)
        self._shown(epoch, counts, offsets)
        while not self._source.stopped.is_set():
            epoch, skipped = self._partitions(epoch, {})
            offsets = {**ends_of(epoch, self._source.kafka.topics), **offsets, **skipped}
            try:
                read = self._topics.read_on(offsets, self._source.kafka.epoch)
            except OffsetExpired:
                epoch, skipped = self._partitions(epoch, offsets, check=True)
                offsets = {**offsets, **skipped}
                continue
            if self._source.stopped.is_set():
                return
            offsets = {**offsets, **read.ends}
            if not read.messages:
                self._shown(epoch, counts, offsets)
                continue
            following = epoch.following(offsets)
            self._require_same(epoch, self._describe(0.0))
            self._source.step("read")
            if not self._log.create(following):
                log.info("%s: another process reads the same topics", self._source.dataset.claim)
                return
            self._source.step("recorded")
            lost = sum(self._expired.pop(p, 0) for p in following.due)
            counts = self._completed(following, read, counts + Counts(lost=lost))
            epoch = following
            self._shown(epoch, counts, offsets, complete=True)

    def _begin(self) -> tuple[Epoch, Counts]:
        """The newest epoch, completed if a process has left it.

        Raises:
            Trouble: Nothing is read until its cause is gone.
        """
        self._table()  # nothing is read for a table that is not there
        described = self._describe(0.0)
        newest = self._log.newest()
        if newest is None:
            newest = self._first(described)
        self._require_same(newest, described)
        counts = self._log.counts(newest.number) if newest.number else Counts()  # epoch 0 has no batches
        if counts is not None:
            return newest, counts
        before = self._log.counts(newest.number - 1) or Counts()
        left, expired = split(newest.due, self._topics.watermarks(newest.due))
        lost = self._lost(expired)
        read = self._topics.read_again(left) if left else Read()
        if self._source.stopped.is_set():
            return newest, before
        return newest, self._completed(newest, read, before + Counts(lost=lost.total()), again=True)

    def _first(self, described: TopicsDescription) -> Epoch:
        """Epoch 0, which records where reading begins."""
        start = {p: self._start(w) for p, w in self._topics.watermarks(described.partitions).items()}
        epoch = Epoch(0, described.cluster, described.topics, {p: OffsetRange(o, o) for p, o in start.items()})
        if not self._log.create(epoch):
            newest = self._log.newest()
            assert newest is not None
            return newest
        return epoch

    def _start(self, marks: Watermarks) -> int:
        """Where reading begins in a partition of a topic that was never read."""
        return marks.high if self._source.kafka.starting_offsets is StartingOffsets.LATEST else marks.low

    def _partitions(
        self, epoch: Epoch, offsets: Mapping[KafkaPartition, int], check: bool = False
    ) -> tuple[Epoch, dict[KafkaPartition, int]]:
        """The epoch with partitions that were added, and the offsets to go on at where earlier ones have expired.

        Args:
            check: Whether to compare offsets with what the broker has.

        Raises:
            Trouble: Nothing is read until its cause is gone.
        """
        described = self._describe(DESCRIBE_SECONDS)
        self._require_same(epoch, described)
        new = described.partitions - epoch.ranges.keys()
        skipped: dict[KafkaPartition, int] = {}
        if new:
            # A partition that was added after reading began is read from its start. A topic that was added begins as the first.
            known = {p.topic for p in epoch.ranges}
            marks = self._topics.watermarks(new)
            start = {p: 0 if p.topic in known else self._start(m) for p, m in marks.items()}
            epoch = epoch.with_partitions(start, described.topics)
        if check or new:
            due = {**ends_of(epoch, self._source.kafka.topics), **offsets}
            lost = gaps(due, self._topics.watermarks(due))
            for partition in lost.replaced:
                raise epochs.other_topic(partition.topic, self._log.uri)
            self._expired += self._lost(lost.expired)
            skipped = {p: r.end for p, r in lost.expired.items()}
        return epoch, skipped

    def _lost(self, expired: Mapping[KafkaPartition, OffsetRange]) -> Counter[KafkaPartition]:
        """How many offsets of each partition have expired.

        Raises:
            Trouble: If any have, unless the Dataset says to go on.
        """
        lost = Counter({p: r.end - r.first for p, r in expired.items()})
        if not lost:
            return lost
        where = ", ".join(f"{p.topic}/{p.number}: {r.first} to {r.end - 1}" for p, r in sorted(expired.items())[:5])
        if self._source.kafka.lost_offsets is LostOffsets.STOP:
            raise epochs.lost(lost.total(), where)
        log.warning("%s: %d offsets expired before they were read: %s", self._source.dataset.claim, lost.total(), where)
        return lost

    def _describe(self, at_most_seconds: float) -> TopicsDescription:
        """The topics, as described at most so long ago.

        Raises:
            Trouble: Nothing is read until its cause is gone.
        """
        now = time.monotonic()
        if self._described is None or now - self._described[0] >= at_most_seconds:
            self._described = now, self._topics.describe()
        return self._described[1]

    def _require_same(self, epoch: Epoch, described: TopicsDescription) -> None:
        """Require the cluster and the topics that an epoch was read from.

        Raises:
            Trouble: The cluster or a topic is not the one that the log is about.
        """
        if described.cluster != epoch.cluster:
            raise epochs.other_cluster(self._source.kafka.cluster, self._log.uri)
        for topic, id in described.topics.items():
            if epoch.topics.get(topic, id) != id:
                raise epochs.other_topic(topic, self._log.uri)

    def _completed(self, epoch: Epoch, read: Read, counts: Counts, again: bool = False) -> Counts:
        """Write the batches of an epoch, and record that it is complete.

        Args:
            again: Another process may have written some of them.
        """
        table = self._table()
        target = RowTarget(
            columns_of(table.schema()),
            self._source.dataset.spec.batch_column,
            self._source.dataset.spec.schema_evolution,
        )
        due = epoch.due
        known = self._known(table, due) if again else frozenset()
        for partition, offsets in due.items():
            messages = read.messages.get(partition, [])
            id = batch_id(partition, offsets)
            decoded = self._decoder.decode(messages, target, id)
            if id in known:
                counts += Counts(decoded.rows.num_rows, len(decoded.refused))
            else:
                counts += self._batches.write(partition, offsets, decoded)
            self._source.step("written")
        self._source.step("all-written")
        self._log.complete(epoch.number, counts)
        self._source.step("complete")
        return counts

    def _known(self, table: Table, due: Mapping[KafkaPartition, OffsetRange]) -> frozenset[str]:
        """The batches that are in the buffer, or that the table's ledger knows: promoted, and gone from the buffer."""
        ids = [batch_id(p, r) for p, r in due.items()]
        spec = self._source.dataset.spec
        ledger = ledger_store.load(table.io, observe(table, spec.batch_column, spec.table.name)).ledger
        return frozenset(get_many(ledger.batches, ids)) | self._batches.are_there(ids)

    def _table(self) -> Table:
        """The table.

        Raises:
            Trouble: The Dataset does not have its table yet.
        """
        spec = self._source.dataset.spec
        try:
            table = catalogs.load(spec.table.catalog).load_table(spec.table.name)
        except (NoSuchTableError, NoSuchNamespaceError, TableIsView):
            raise epochs.NO_TABLE from None
        if table.properties.get(names.CLAIM) != self._source.dataset.claim:
            raise epochs.NO_TABLE
        return table

    def _shown(
        self, epoch: Epoch, counts: Counts, offsets: Mapping[KafkaPartition, int], complete: bool = False
    ) -> None:
        state = reading(self._source.state)
        marks = self._topics.watermarks(offsets, known=True)
        changes = {
            "epoch": epoch.number,
            "epoch_time": datetime.now(UTC) if complete else state.epoch_time,
            "partitions": len(offsets),
            "lag": lag_of(offsets, marks) if marks else state.lag,
            "rows": counts.rows,
            "refused_messages": counts.refused,
            "lost_offsets": counts.lost,
        }
        self._source._show(SourceStatus.model_validate({**dict(state), **changes}))


def _failure(error: Exception) -> Verdict:
    """Why reading failed. Messages of foreign errors may contain credentials."""
    if isinstance(error, LetheError):
        return error.verdict
    if isinstance(error, UnreadableLog):
        return Verdict(Reason.EPOCH_LOG_UNREADABLE, str(error))
    return Verdict(
        Reason.SOURCE_FAILED,
        f"Reading failed ({type(error).__name__}); it is tried again. The inlet's log may say more.",
    )
