"""Applies the acts of a plan to one Dataset, and waits until the table shows them. Goes on through every outage. I/O only."""

import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar, assert_never

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import SQLAlchemyError

from tests.cluster.chaos.acts import (
    Act,
    Change,
    Erase,
    EraseRows,
    Put,
    Replay,
    Request,
    Revert,
    Step,
    Undo,
    Vacuum,
)
from tests.cluster.chaos.model import Model
from tests.cluster.kube import Object, Refused, condition
from tests.cluster.lake import ClusterLake, batch_folder
from tests.cluster.story import ClusterStory
from tests.model.rows import mark_of, marks_in
from tests.support.file_contents import decoded

# A step may meet several faults, and runs that are repeated in Jobs.
STEP_SECONDS: Final = 1200
LOOK_AGAIN_SECONDS: Final = 2.0
OUTAGE: Final = (Refused, subprocess.TimeoutExpired, BotoCoreError, ClientError, SQLAlchemyError, OSError)
PURGED: Final = "AlreadyPurged"
EVICT_BY_SECONDS: Final = 3600  # due at once
COLUMNS: Final = "id BIGINT, at TIMESTAMP, mark STRING"
SCHEMA: Final = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("mark", pa.string())])

T = TypeVar("T")


class Failed(AssertionError):
    """An act ended as it may not end."""


@dataclass
class Player:
    story: ClusterStory
    steps: Iterator[Step]
    model: Model = field(default_factory=Model)
    acts: list[Act] = field(default_factory=list)  # that were applied
    refused: list[str] = field(default_factory=list)  # names of Restatements that were refused, as they may be
    failed_vacuums: list[str] = field(default_factory=list)  # their messages

    def play(self, until: float, stopped: threading.Event) -> None:
        """Carry out one step after the other, until a time of the monotonic clock. Raises: Failed."""
        for step in self.steps:
            if time.monotonic() >= until or stopped.is_set():
                return
            self.model.announce(step)
            for act in step:
                through_outages(lambda a=act: self._begin(a))  # type: ignore[misc]
                self.acts.append(act)
            self._finish(step)

    # --- applying ---

    def _begin(self, act: Act) -> None:
        story = self.story
        match act:
            case Put(batch):
                story.lake.put_batch(batch_folder(story.buffer, batch.id), table_of(batch.id, batch.ids, batch.day))
            case Vacuum(value):
                story.annotate(vacuum_now=value)
            case EraseRows(name, ids):
                secret = f"erase-{story.name}-{name}"
                named = {"name": secret, "labels": {"story": story.name}}
                data = {"ids": "".join(f"{i}\n" for i in ids)}
                story.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": named, "stringData": data})
                source = {"secretKeyRef": {"name": secret, "key": "ids"}}
                self._request(act, rows={"column": "id", "valuesFrom": source}, evictBySeconds=EVICT_BY_SECONDS)
            case Erase(_, batches):
                self._request(act, batchIds=list(batches), evictBySeconds=EVICT_BY_SECONDS)
            case Revert(_, batches):
                self._request(act, batchIds=list(batches))
            case Undo(_, of):
                self._request(act, undoes={"name": f"{story.name}-{of.name}"})
            case Replay(_, batches, by):
                replacement = self._replacement(by.id, table_of(by.id, by.ids, by.day))
                self._request(act, batchIds=list(batches), replacement=replacement)
            case Change(_, by, updates, deletes):
                keyed = {"keyColumns": ["id"], "opColumn": "op"}
                self._request(act, replacement=self._replacement(by, changes_of(by, updates, deletes)) | keyed)
            case _:
                assert_never(act)

    def _replacement(self, batch_id: str, rows: pa.Table) -> Object:
        folder = f"{self.story.restated}/{batch_id}"
        self.story.lake.put_batch(folder, rows)
        return {"batchId": batch_id, "uri": folder}

    def _request(self, act: Request, **spec: object) -> None:
        self.story.apply(self.story.a_restatement(act.name, operation_of(act), **spec))

    # --- waiting ---

    def _finish(self, step: Step) -> None:
        """Wait until each act is carried out and the table has the rows of the model. Raises: Failed."""
        until = time.monotonic() + STEP_SECONDS
        for act in step:
            while not through_outages(lambda a=act: self._is_over(a)):  # type: ignore[misc]
                self._pause(until, f"{act} is not carried out")
        while (
            found := through_outages(lambda: self.story.lake.rows(self.story.table), NoSuchTableError)
        ) != self.model.rows:
            wanted = self.model.rows
            self._pause(until, f"after {step}: too many {dict(found - wanted)}, missing {dict(wanted - found)}")

    def _pause(self, until: float, what: str) -> None:
        if time.monotonic() >= until:
            raise Failed(f"{self.story.name}, after {STEP_SECONDS} s: {what}")
        threading.Event().wait(LOOK_AGAIN_SECONDS)

    def _is_over(self, act: Act) -> bool:
        """Whether an act has ended; then the model has its rows. Raises: Failed, if it may not end so."""
        match act:
            case Put():
                self.model.carry_out(act)
                return True
            case Vacuum(value):
                return self._vacuum_is_over(value)
            case _:
                return self._request_is_over(act)

    def _vacuum_is_over(self, value: str) -> bool:
        body = self.story.cluster.get(self.story.dataset) or {}
        asked = body.get("status", {}).get("vacuum", {}).get("requested", {})
        if asked.get("value") != value or asked.get("outcome") not in ("Succeeded", "Failed"):
            return False
        if asked["outcome"] == "Failed":
            self.failed_vacuums.append(f"{self.story.name} {value}: {asked.get('message')}")
        return True

    def _request_is_over(self, act: Request) -> bool:
        body = self.story.cluster.get(self.story.restatement(act.name)) or {}
        succeeded = condition(body, "Succeeded")
        match succeeded.get("status"):
            case "True":
                self.model.carry_out(act)
                return True
            case "False":
                if not (self.model.may_refuse(act) and succeeded.get("reason") == PURGED):
                    raise Failed(
                        f"{self.story.name}: {act} failed: {succeeded.get('reason')}: {succeeded.get('message')}"
                    )
                self.refused.append(f"{self.story.name}-{act.name}")
                return True
        return False


def operation_of(act: Request) -> str:
    match act:
        case Revert():
            return "Revert"
        case Undo():
            return "Undo"
        case Erase() | EraseRows():
            return "Erase"
        case Replay() | Change():
            return "Replay"
        case _:
            assert_never(act)


def through_outages(do: Callable[[], T], *also: type[Exception]) -> T:
    """Repeat something until no outage prevents it.

    Args:
        also: Further errors that pass.
    """
    until = time.monotonic() + STEP_SECONDS
    while True:
        try:
            return do()
        except (*OUTAGE, *also):
            if time.monotonic() >= until:
                raise
        threading.Event().wait(LOOK_AGAIN_SECONDS)


def table_of(batch_id: str, ids: Collection[int], day: int) -> pa.Table:
    midnight = datetime(2024, 1, day, tzinfo=UTC)
    rows = [
        {"id": i, "at": midnight + timedelta(minutes=i % 1440), "mark": mark_of((batch_id, i, day))}
        for i in sorted(ids)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def changes_of(batch_id: str, updates: Collection[int], deletes: Collection[int]) -> pa.Table:
    """The rows of a Replay with key columns."""
    rows = table_of(batch_id, [*updates, *deletes], 6)
    ops = ["U" if i in updates else "D" for i in rows["id"].to_pylist()]
    return rows.append_column("op", pa.array(ops))


def marks_in_bucket(lake: ClusterLake, bucket: str) -> dict[str, str]:
    """The marks of rows that the objects of a bucket contain, in their bytes or decoded, each with one of the objects."""
    found = {}
    for uri in sorted(lake.keys(bucket)):
        if uri.endswith("/"):  # an empty folder
            continue
        try:
            content = lake.get(uri)
        except lake.s3.exceptions.NoSuchKey:  # deleted since it was listed
            continue
        found |= dict.fromkeys(marks_in(content) | marks_in(decoded(uri, content)), uri)
    return found
