"""Changes of Datasets, Restatements and runs, as server-sent events. Pure.

An event id holds the versions up to which the stream has reported each kind. The API server gave these versions, so every replica
of the gateway can continue from them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lethe.contract.schema import ApiModel
from lethe.kube import DATASETS, RESTATEMENTS, ResourceKind

from lethe_gateway.problems import Kind, Problem
from lethe_gateway.resources import datasets, restatements
from lethe_gateway.resources.datasets import RunView, is_active, runs_of

KINDS: Final = (DATASETS, RESTATEMENTS)
_ID: Final = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
_TYPES: Final[Mapping[str, str]] = {"ADDED": "added", "MODIFIED": "modified", "DELETED": "deleted"}


@dataclass(frozen=True)
class StreamPlace:
    """Up to which versions a stream has reported."""

    datasets: str
    restatements: str

    @property
    def id(self) -> str:
        """The id of an event, `<datasets>-<restatements>`, which `place_of` reads."""
        return f"{self.datasets}-{self.restatements}"

    def of(self, kind: ResourceKind) -> str:
        """The resourceVersion up to which changes of this kind were reported."""
        return self.datasets if kind is DATASETS else self.restatements

    def moved(self, kind: ResourceKind, version: str) -> "StreamPlace":
        """The place after a change of this kind, with its new resourceVersion."""
        return replace(self, **{kind.plural: version})


def place_of(id: str) -> StreamPlace:
    """Where a stream goes on after the event with this id.

    Raises:
        Problem: `invalid-request`.
    """
    match = _ID.fullmatch(id)
    if match is None:
        raise Problem(
            Kind.INVALID_REQUEST, "The header Last-Event-ID must be the id of an event of this stream, or be left out."
        )
    return StreamPlace(*match.groups())


@dataclass
class Reported:
    """The runs that a stream has reported, so that it reports only what changed."""

    runs: dict[str, dict[str, RunView]] = field(default_factory=dict)
    """By Dataset, by name of the run."""

    def changed(self, dataset: str, now: list[RunView]) -> list[RunView]:
        """The runs that are new or changed. Of a Dataset that the stream has not seen: those that are active, and the newest."""
        before = self.runs.get(dataset)
        self.runs[dataset] = {r.name: r for r in now}
        if before is None:
            return [r for n, r in enumerate(now) if n == 0 or is_active(r)]
        return [r for r in now if before.get(r.name) != r]

    def forget(self, dataset: str) -> None:
        """Remove what was reported of a Dataset, such as one that was deleted."""
        self.runs.pop(dataset, None)


def events_of(
    kind: ResourceKind, event: Mapping[str, Any], reported: Reported, dataset: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The names and the data of the events for one event of a watch, those of runs first.

    Args:
        dataset: Only what concerns this Dataset; "": everything.
    """
    change = _TYPES.get(str(event.get("type")))
    if change is None:
        return
    resource = event["object"]
    if kind is RESTATEMENTS:
        if not dataset or restatements.dataset_name_of(resource) == dataset:
            yield "restatement", {"change": change, "restatement": _json(restatements.summary_of(resource))}
        return
    name = str(resource["metadata"]["name"])
    if dataset and name != dataset:
        return
    if change == "deleted":
        reported.forget(name)
    else:
        for run in reported.changed(name, runs_of(resource)):
            yield "run", {"change": "modified", "run": _json(run)}
    yield "dataset", {"change": change, "dataset": _json(datasets.summary_of(resource))}


def text_of(name: str, data: Mapping[str, Any], id: str = "") -> bytes:
    """An event as it is sent.

    Args:
        id: "": the event has none, and a client continues before it.
    """
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def heartbeat(id: str) -> bytes:
    """Not an event for clients: it only sets the id to continue from."""
    return f": heartbeat\nid: {id}\n\n".encode()


def _json(document: ApiModel) -> dict[str, Any]:
    return document.model_dump(mode="json", by_alias=True, exclude_none=True)
