"""Closes verified erasures with their records, and lists what blocks the others. I/O: one commit."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from lethe.base import names
from lethe.base.names import run_id
from lethe.base.objects import parse_retention
from lethe.contract.result import LISTED_AT_MOST, ErasureOutcome
from lethe.contract.settings import RunFamily
from lethe.erasure.progress import History, OpenErasure, has_unseen, mark, open_erasures_of, plan_closing
from lethe.erasure.record import Record, Verification, record, with_blockers
from lethe.iceberg.snapshot_files import Manifests
from lethe.ledger.ledger import Delta, RequestEntry
from lethe.ledger.tombstone import Erasure, ErasureBlocker, PurgedFile
from lethe.search.object_versions import Storage
from lethe.storage.object_store import write_once

from lethe_spark.commit.ledger_commit import Intent, NothingToCommit, commit_on_ledger
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run, batch_ids_digest, table_properties

RETENTION_VARIABLE: Final = "LETHE_ERASURE_RECORD_RETENTION"
"""The variable, set by the operator, with MODE:DAYS."""
CHECK_AGAIN_SECONDS: Final = 21_600
"""The interval of checks for blockers in the storage, which no event reports."""


def note_purged(context: Run, table: IcebergTable, manifests: Manifests) -> int | None:
    """Record in the ledger which erasures have no rows in the head any more, and which files of older snapshots may hold some.

    After the expiry no metadata would name these files. The list is a separate commit on the current head. If the run crashes
    before it, nothing is lost, because the snapshots are still there.

    Returns:
        The id of the new snapshot; None: nothing changed.

    Raises:
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        TransientError: A dependency is temporarily unavailable.
        LedgerError: A ledger file is unusable.
    """
    own = for_erasures(context, "note")

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        claimed = open_erasures_of(base.ledger, base.facts.snapshots, base.field_id)
        if not claimed:
            return NothingToCommit(None)
        history = manifests.history(base.iceberg, base.facts, base.field_id)
        marked = mark(claimed, history, base.ledger.purged_files, datetime.now(UTC))
        if marked.is_empty:
            return NothingToCommit(None)
        delta = Delta(
            own.run_id,
            set_erasures=marked.erasures,
            set_purged_files=marked.files,
            forget_purged_files=marked.clean,
        )
        return Intent(delta, LedgerOnly(), None)

    return commit_on_ledger(own, table, plan).snapshot_id


def for_erasures(context: Run, step: str) -> Run:
    """The context for an additional commit of a run, with its own run id: it must not count as the run's own commit."""
    spec = context.spec
    own = run_id(spec.dataset.uid, RunFamily.VACUUM, [f"erasures\n{step}\n{spec.run_id}\n{spec.attempt}"])
    return replace(context, spec=spec.model_copy(update={"run_id": own, "family": RunFamily.VACUUM}))


@dataclass
class CheckedErasures:
    """What one check of the erasures has found."""

    claims: Mapping[str, OpenErasure]
    """The open erasures, by key."""
    history: History
    files: Mapping[str, PurgedFile]
    """The files that may hold rows of erasures, by path."""
    refs: tuple[str, ...]
    """The names of tags and branches."""
    head_id: int | None
    """The current snapshot; None: the table is empty."""
    blockers: dict[str, list[ErasureBlocker]] = field(default_factory=dict)
    """What blocks the others, by key of the erasure."""
    holds: Mapping[str, tuple[ErasureBlocker, ...]] | None = None
    """The holds that keep rows of erasures in data files of the head, by key. None: the run did not look."""
    leftovers: int = 0
    """The number of files that no snapshot names and that may be removed."""
    is_outdated: bool = False
    """A commit added a snapshot that this check has not seen and that may hold rows, so nothing was closed."""
    locations: tuple[str, ...] = ()
    """The folders that were listed."""
    metadata_folders: tuple[str, ...] = ()
    """The folders of the table's metadata files, as far as they can be listed."""
    not_covered: tuple[str, ...] = ()
    """What this check could not see, as sentences."""
    uncovered: set[str] = field(default_factory=set)
    """Objects that it neither read nor removed, with the reason."""

    @property
    def free(self) -> list[str]:
        """The keys of the erasures whose rows have left the head, and that no known blocker keeps open."""
        return [k for k, c in self.claims.items() if c.erasure.is_purged and not c.hidden and not self.blockers.get(k)]

    def block(self, keys: Iterable[str], blocker: ErasureBlocker) -> None:
        """Add a blocker to each of these erasures, so that this check does not close them."""
        for key in keys:
            self.blockers.setdefault(key, []).append(blocker)


def verification_of(context: Run, seen: CheckedErasures, storage: Storage) -> Verification:
    """What records say of this check: its scope, its calls to the storage, and what it could not see, as of now."""
    return Verification(
        run_id=context.spec.run_id,
        time=datetime.now(UTC),
        head_id=seen.head_id,
        snapshots=len(seen.history.snapshots),
        refs=seen.refs,
        calls=dict(storage.calls),
        all_versions=storage.supports_versions,
        folders_listed=storage.lists_folders,
        leftovers=seen.leftovers,
        locations=seen.locations,
        not_covered=seen.not_covered,
        uncovered=tuple(seen.uncovered),
    )


def close(
    context: Run, table: IcebergTable, seen: CheckedErasures, verification: Verification, expired: Collection[int]
) -> tuple[tuple[ErasureOutcome, ...], int | None]:
    """Write the records of verified erasures, close these erasures, and record the blockers of the others in the ledger.

    Args:
        expired: Ids of the snapshots that this run has expired for due erasures.

    Returns:
        The outcome of each open erasure; and the id of the new snapshot, None: nothing changed.

    Raises:
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        TransientError: A dependency is temporarily unavailable.
        LedgerError: A ledger file is unusable.
        Exception: As `write_once`.
    """
    own = for_erasures(context, "close")
    written: dict[str, ErasureOutcome] = {}

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        current = {e.restatement: e for e in base.ledger.open_erasures}
        same = {k: c for k, c in seen.claims.items() if current.get(k) == c.erasure}
        seen.is_outdated = bool(seen.free) and has_unseen(seen.history, base.facts.snapshots, base.facts.head_id)
        free = [] if seen.is_outdated else [k for k in seen.free if k in same]
        closing = plan_closing(base.ledger, free, seen.files, base.field_id)
        for key in closing.keys:
            if key not in written:
                evidence = _evidence(base, seen, seen.claims[key], verification, expired)
                written[key] = _written(base, evidence, seen.claims[key], verification, table_properties(context))
        context.step("after-record")
        observed = [_observed(c, seen, verification.time) for c in same.values()]
        changed = (e for e in observed if e != current[e.restatement])
        delta = Delta(
            own.run_id,
            set_requests=tuple(_closed(base.ledger.requests[k], written[k]) for k in closing.keys),
            set_erasures=(*changed, *closing.set_erasures),
            close_erasures=closing.close,
            set_purged_files=closing.set_files,
            forget_purged_files=closing.forget_files,
        )
        return Intent(delta, LedgerOnly(), None) if not delta.is_empty else NothingToCommit(None)

    done = commit_on_ledger(own, table, plan)
    still_open = {e.restatement for e in observe_base(context, table).ledger.open_erasures}
    outcomes = (
        written[k] if k in written and k not in still_open else _outcome(c, seen) for k, c in seen.claims.items()
    )
    return tuple(outcomes), done.snapshot_id


def _observed(claim: OpenErasure, seen: CheckedErasures, now: datetime) -> Erasure:
    blockers: Collection[ErasureBlocker] | None = seen.blockers.get(claim.key)
    if not claim.erasure.is_purged:
        blockers = seen.holds.get(claim.key, ()) if seen.holds is not None else None
    if blockers is None:
        return claim.erasure
    return with_blockers(claim.erasure, blockers, now, CHECK_AGAIN_SECONDS)


def _closed(entry: RequestEntry, outcome: ErasureOutcome) -> RequestEntry:
    document = outcome.model_dump(mode="json", by_alias=True, exclude_none=True)
    return replace(entry, result={**entry.result, "erasure": document})


def _evidence(
    base: Base, seen: CheckedErasures, claim: OpenErasure, verification: Verification, expired: Collection[int]
) -> Record:
    facts = base.facts
    table = {"name": facts.name, "uuid": facts.uuid, "location": facts.location}
    files = [f for f in seen.files.values() if claim.key in f.restatements]
    snapshots = sorted(expired) if claim.erasure.evict_by is not None else ()
    digest = batch_ids_digest(claim.result.named_batch_ids) if claim.names_batches else ""
    return record(claim, table, files, verification, snapshots, digest)


def _written(
    base: Base, made: Record, claim: OpenErasure, verification: Verification, properties: Mapping[str, str]
) -> ErasureOutcome:
    """Write a record to the table's folder of records.

    Raises:
        Exception: As `write_once`.
    """
    uri = f"{base.facts.location.rstrip('/')}/{names.ERASURES_FOLDER}/{made.name}"
    retention = parse_retention(os.environ.get(RETENTION_VARIABLE, ""))
    write_once(uri, made.content, base.iceberg.io, properties, retention)
    return ErasureOutcome(
        restatement=claim.key,
        vacuum_snapshot_id=claim.erasure.purged_by,
        verified_time=verification.time,
        record=uri,
        record_sha256=made.sha256,
    )


def _outcome(claim: OpenErasure, seen: CheckedErasures) -> ErasureOutcome:
    blockers = [*(seen.holds or {}).get(claim.key, ()), *seen.blockers.get(claim.key, ())]
    return ErasureOutcome(
        restatement=claim.key,
        vacuum_snapshot_id=claim.erasure.purged_by,
        blocked_by=tuple(str(b) for b in blockers[:LISTED_AT_MOST]),
        blocked_by_count=len(blockers),
    )
