"""The parts of a gateway as protocols, for tests of routes: a cluster in memory, rights as a set, one table."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fastapi.testclient import TestClient
from lethe.buffer.batch_rows import BatchRow
from lethe.contract.dataset import HoldSpec
from lethe.contract.result import VacuumPlanned
from lethe.contract.run import RetentionSpec
from lethe.kube import ResourceKind
from lethe_gateway.app import create_app
from lethe_gateway.freshness import TableFreshness
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.problems import Kind, Problem, not_found, unauthenticated
from lethe_gateway.resources.client import ResourcePage
from lethe_gateway.services import Services
from lethe_gateway.settings import GatewaySettings
from lethe_gateway.tables.looking import Column, FileWithDeletes, HeadDeletes, ShownSnapshot, TableDescription
from lethe_gateway.tables.records import BatchFacts, BatchQuery, KnownErasure, TableTarget, micros

from tests.support.builders import NOW

TOKEN = "a-token"
READER = Caller("ana", "u1", token=TOKEN)
RIGHTS = frozenset({Right.to_list("ns"), Right.to_read_batches("ns", "flights")})


@dataclass
class Rights:
    """Callers by token, and what each of them may."""

    callers: dict[str, Caller] = field(default_factory=lambda: {TOKEN: READER})
    rights: frozenset[Right] = RIGHTS
    asked: list[str] = field(default_factory=list)  # tokens

    def authenticate(self, token: str) -> Caller:
        self.asked.append(token)
        if token not in self.callers:
            raise unauthenticated()
        return self.callers[token]

    def remembered(self, token: str) -> Caller | None:  # noqa: ARG002
        return None

    def may(self, caller: Caller, right: Right) -> bool:  # noqa: ARG002
        return right in self.rights


@dataclass
class Resources:
    """Resources in memory, by the plural of their kind."""

    of: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    before_each: Callable[[], None] = lambda: None
    logs: dict[str, list[str]] = field(default_factory=dict)
    """Of runs, by name."""

    def get(self, caller: Caller, kind: ResourceKind, namespace: str, name: str) -> dict[str, Any]:  # noqa: ARG002
        self.before_each()
        found = [r for r in self.of.get(kind.plural, ()) if r["metadata"]["name"] == name]
        if not found:
            raise not_found()
        return found[0]

    def page(self, caller: Caller, kind: ResourceKind, namespace: str, after: str, limit: int) -> ResourcePage:  # noqa: ARG002
        self.before_each()
        every = sorted(self.of.get(kind.plural, ()), key=lambda r: str(r["metadata"]["name"]))
        start = int(after or 0)
        more = str(start + limit) if start + limit < len(every) else ""
        return ResourcePage(every[start : start + limit], more, "7")

    def watch(self, *_: Any) -> Iterator[dict[str, Any]]:
        return iter(())

    def log(self, _caller: Caller, _namespace: str, run: str, last: int) -> list[str]:
        return self.logs.get(run, [])[-last:]


@dataclass
class Writer:
    """Changes resources in memory, or fails."""

    resources: Resources
    problem: Problem | None = None
    created: list[dict[str, Any]] = field(default_factory=list)
    annotated: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def create(
        self,
        _caller: Caller,
        kind: ResourceKind,
        _namespace: str,
        document: Mapping[str, Any],
        dry_run: bool = False,  # noqa: ARG002
    ) -> dict[str, Any]:
        there = self.resources.of.setdefault(kind.plural, [])
        if self.problem is not None:
            raise self.problem
        if any(r["metadata"]["name"] == document["metadata"]["name"] for r in there):
            raise Problem(Kind.ALREADY_EXISTS, "it exists")
        there.append(dict(document))
        self.created.append(dict(document))
        return dict(document)

    def patch(
        self,
        _caller: Caller,
        _kind: ResourceKind,
        _namespace: str,
        name: str,
        patch: Mapping[str, Any],
        dry_run: bool = False,  # noqa: ARG002
    ) -> dict[str, Any]:
        if self.problem is not None:
            raise self.problem
        self.annotated.append((name, dict(patch["metadata"]["annotations"])))
        return {}


DESCRIPTION = TableDescription(
    name="lite.air.flights",
    format_version=2,
    columns=(Column("batch_id", "string", True, ""), Column("delay", "int", False, "minutes")),
    partitions=("day(time)",),
    sort_order=("batch_id",),
    snapshots=(ShownSnapshot(7, NOW, "append", "3", "1", "", "run-1", ("main",)),),
    snapshots_count=1,
    deletes=HeadDeletes((FileWithDeletes("s3://b/data/0.parquet", 4, 1),), files_count=1, rows=1, of_several=0),
    files_count=2,
    vacuum=VacuumPlanned(digest="p", snapshot_id=7, files=1, bytes=4096, tombstones=1, rows=1),
)


@dataclass
class OneTable:
    """A table store with one table, or with a problem."""

    rows: list[BatchRow] = field(default_factory=list)
    problem: Problem | None = None
    facts: dict[str, BatchFacts] = field(default_factory=dict)
    known: list[KnownErasure] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    targets: list[TableTarget] = field(default_factory=list)
    retentions: list[RetentionSpec | None] = field(default_factory=list)
    holds: list[tuple[str, ...]] = field(default_factory=list)
    """Their names."""
    description: TableDescription = field(default_factory=lambda: DESCRIPTION)
    freshness: TableFreshness = field(default_factory=lambda: TableFreshness(read_time=NOW, head_ledger_version=3))

    @contextmanager
    def view(self, target: TableTarget) -> Iterator["OneTable"]:
        self.targets.append(target)
        if self.problem is not None:
            raise self.problem
        yield self

    def describe(
        self, target: TableTarget, retention: RetentionSpec | None = None, holds: Sequence[HoldSpec] = ()
    ) -> TableDescription:
        self.targets.append(target)
        self.holds.append(tuple(h.name for h in holds))
        self.retentions.append(retention)
        if self.problem is not None:
            raise self.problem
        return self.description

    @property
    def head_files(self) -> tuple[int | None, int | None]:
        return 12, 3_400_000

    def batches(self, query: BatchQuery, limit: int) -> list[BatchRow]:
        after = query.after
        rows = [r for r in self.rows if r.batch_id.startswith(query.id_prefix)]
        rows.sort(key=lambda r: (r.state_time, r.batch_id), reverse=True)
        if after is not None:
            rows = [r for r in rows if (micros(r.state_time), r.batch_id) < (after.time, after.id)]
        return rows[:limit]

    def batch(self, id: str) -> BatchFacts | None:
        return self.facts.get(id)

    def promotions(self, since: datetime) -> list[tuple[datetime, int]]:
        days = Counter(
            r.state_time.replace(hour=0, minute=0, second=0, microsecond=0)
            for r in self.rows
            if r.state == "promoted" and r.state_time >= since
        )
        return sorted(days.items())

    def erasures(self, after: str, limit: int, open_only: bool) -> list[KnownErasure]:
        chosen = [k for k in self.known if k.key > after and (k.pending is not None or not open_only)]
        return sorted(chosen, key=lambda k: k.key)[:limit]

    def erasures_named(self, name: str) -> list[KnownErasure]:
        return [k for k in self.known if k.key.rpartition("/")[0] == name]

    def record(self, uri: str, max_bytes: int) -> bytes | None:
        content = self.files.get(uri)
        return content[:max_bytes] if content is not None else None

    def close(self) -> None:
        return


@dataclass
class Parts:
    """A gateway of such parts, and a client with a valid token."""

    identity: Rights = field(default_factory=Rights)
    resources: Resources = field(default_factory=Resources)
    tables: OneTable = field(default_factory=OneTable)
    settings: GatewaySettings = field(default_factory=lambda: GatewaySettings(namespaces=("ns",)))
    writer: Writer = field(init=False)

    def __post_init__(self) -> None:
        self.writer = Writer(self.resources)

    def client(self, token: str = TOKEN) -> TestClient:
        parts = (self.identity, self.resources, self.tables, self.writer)
        services = Services(self.settings, *parts, now=lambda: NOW)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return TestClient(create_app(services), headers=headers, raise_server_exceptions=False)
