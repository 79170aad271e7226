"""Applies the acts of a plan to one Dataset, and waits until the table shows them. Goes on through every outage. I/O only."""

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar, assert_never

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy.exc import SQLAlchemyError

from tests.cluster.chaos.plan import SETUP, Act, Step, may_be_purged
from tests.cluster.kube import Object, Refused, condition
from tests.cluster.lake import ClusterLake, Rows, batch_folder
from tests.cluster.story import ClusterStory
from tests.model.acts import Append, Change, Erase, EraseRows, Replay, Request, Revert, Undo, Vacuum, request_name
from tests.model.model import Model
from tests.model.rows import WRITTEN, as_arrow, changes_table, marks_in
from tests.support.file_contents import decoded

# A step may meet several faults, and runs that are repeated in Jobs.
STEP_SECONDS: Final = 1200
LOOK_AGAIN_SECONDS: Final = 2.0
OUTAGE: Final = (Refused, subprocess.TimeoutExpired, BotoCoreError, ClientError, SQLAlchemyError, OSError)
PURGED: Final = "AlreadyPurged"
EVICT_BY_SECONDS: Final = 3600  # due at once

T = TypeVar("T")


class Failed(AssertionError):
    """An act ended as it may not end."""


@dataclass
class Player:
    story: ClusterStory
    steps: Iterator[Step]
    model: Model = field(
        default_factory=lambda: Model(SETUP)
    )  # no vacuum changes it: nobody sees which rows one has purged
    acts: list[Act] = field(default_factory=list)  # that were applied
    refused: list[str] = field(default_factory=list)  # names of Restatements that were refused, as they may be
    failed_vacuums: list[str] = field(default_factory=list)  # their messages
    vacuum: str = ""  # the value of the annotation that has asked for the last vacuum

    def play(self, until: float, stopped: threading.Event) -> None:
        """Carry out one step after the other, until a time of the monotonic clock. Raises: Failed."""
        for step in self.steps:
            if time.monotonic() >= until or stopped.is_set():
                return
            for act in step:
                through_outages(lambda a=act: self._begin(a))  # type: ignore[misc]
                self.acts.append(act)
            self._finish(step)

    def rows(self) -> Rows:
        return self.story.lake.rows(self.story.table, "v")

    @property
    def wanted(self) -> Rows:
        return Counter({(str(batch), v): n for (batch, v, _), n in self.model.visible.items()})

    # --- applying ---

    def _begin(self, act: Act) -> None:
        """Apply an act; again, if an outage has interrupted it."""
        story = self.story
        match act:
            case Append(ids):
                for i in ids:
                    story.lake.put_batch(batch_folder(story.buffer, i), as_arrow(SETUP.rows_of(i), WRITTEN))
            case Vacuum():
                self.vacuum = f"vacuum-{len(self.acts)}"
                story.annotate(vacuum_now=self.vacuum)
            case _:
                story.apply(story.a_restatement(name_of(act), operation_of(act), **self._spec(act)))

    def _spec(self, act: Request) -> Object:
        """The spec of a Restatement. Writes what it reads."""
        match act:
            case Revert(ids):
                return {"batchIds": list(ids), "unknownBatches": "Allow"}
            case Undo(of):
                return {"undoes": {"name": f"{self.story.name}-{name_of(of)}"}}
            case Erase(ids):
                return {"batchIds": list(ids), "unknownBatches": "Allow", "evictBySeconds": EVICT_BY_SECONDS}
            case EraseRows(marks):
                rows = {"column": "name", "valuesFrom": {"secretKeyRef": self._secret(act, marks)}}
                return {"rows": rows, "evictBySeconds": EVICT_BY_SECONDS}
            case Replay(ids, by):
                folder = self._replacement(by, as_arrow(SETUP.replacement_of(by), WRITTEN))
                return {"batchIds": list(ids), "unknownBatches": "Allow", "replacement": {"batchId": by, "uri": folder}}
            case Change(changes, by):
                folder = self._replacement(by, changes_table(by, changes))
                return {"replacement": {"batchId": by, "uri": folder, "keyColumns": ["v"], "opColumn": "op"}}
            case _:
                assert_never(act)

    def _secret(self, act: Request, marks: Collection[str]) -> Object:
        secret, story = f"{self.story.name}-{name_of(act)}", self.story
        named = {"name": secret, "labels": {"story": story.name}}
        data = {"marks": "".join(f"{m}\n" for m in marks)}
        story.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": named, "stringData": data})
        return {"name": secret, "key": "marks"}

    def _replacement(self, batch_id: str, rows: pa.Table) -> str:
        folder = f"{self.story.restated}/{batch_id}"
        self.story.lake.put_batch(folder, rows)
        return folder

    # --- waiting ---

    def _finish(self, step: Step) -> None:
        """Wait until each act is carried out and the table has the rows of the model. Raises: Failed."""
        until = time.monotonic() + STEP_SECONDS
        for act in step:
            while not through_outages(lambda a=act: self._is_over(a)):  # type: ignore[misc]
                self._pause(until, f"{act} is not carried out")
        wanted = self.wanted
        while (found := through_outages(self.rows, NoSuchTableError)) != wanted:
            self._pause(until, f"after {step}: too many {dict(found - wanted)}, missing {dict(wanted - found)}")

    def _pause(self, until: float, what: str) -> None:
        if time.monotonic() >= until:
            raise Failed(f"{self.story.name}, after {STEP_SECONDS} s: {what}")
        threading.Event().wait(LOOK_AGAIN_SECONDS)

    def _is_over(self, act: Act) -> bool:
        """Whether an act has ended; then the model has its rows. Raises: Failed, if it may not end so."""
        match act:
            case Append():
                self.model.carry_out(act)
                return True
            case Vacuum():
                return self._vacuum_is_over()
            case _:
                return self._request_is_over(act)

    def _vacuum_is_over(self) -> bool:
        body = self.story.cluster.get(self.story.dataset) or {}
        asked = body.get("status", {}).get("vacuum", {}).get("requested", {})
        if asked.get("value") != self.vacuum or asked.get("outcome") not in ("Succeeded", "Failed"):
            return False
        if asked["outcome"] == "Failed":
            self.failed_vacuums.append(f"{self.story.name} {self.vacuum}: {asked.get('message')}")
        return True

    def _request_is_over(self, act: Request) -> bool:
        body = self.story.cluster.get(self.story.restatement(name_of(act))) or {}
        succeeded = condition(body, "Succeeded")
        match succeeded.get("status"):
            case "True":
                self.model.carry_out(act)
                return True
            case "False":
                if not (may_be_purged(act, self.acts) and succeeded.get("reason") == PURGED):
                    raise Failed(
                        f"{self.story.name}: {act} failed: {succeeded.get('reason')}: {succeeded.get('message')}"
                    )
                self.refused.append(f"{self.story.name}-{name_of(act)}")
                return True
        return False


def name_of(act: Request) -> str:
    return request_name(act).lower()


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


def marks_in_bucket(lake: ClusterLake, bucket: str) -> dict[str, str]:
    """The marks of rows that the objects of a bucket contain, in their bytes or decoded, each with one of the objects."""
    found: dict[str, str] = {}
    for uri in sorted(lake.keys(bucket)):
        if uri.endswith("/"):  # an empty folder
            continue
        try:
            content = lake.get(uri)
        except lake.s3.exceptions.NoSuchKey:  # deleted since it was listed
            continue
        found |= dict.fromkeys(marks_in(content) | marks_in(decoded(uri, content)), uri)
    return found
