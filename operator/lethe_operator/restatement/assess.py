"""Assesses one Restatement that is not finished: whether it may start, what it waits for, or why it cannot. Pure.

**Cancelled, or not committed by its deadline.** The ledger says whether the Restatement was committed anyway, and the caller
checks the ledger first. So the assessment is not final while a run is active, or while the table cannot be read and there may
have been a run.

**An Erase by records, a Replay with key columns, a Redact.** Such a run searches for rows in the table. So every batch that was
in the buffer when the Restatement was created must be promoted first; otherwise its rows would be added after the search.
Batches that are added to the buffer later do not matter. Invariant: no time of the API server or of the operator is compared
with a time of the store. A listing that starts after the operator knows the Restatement finds all batches that came before it.
The write time of the youngest of them is the horizon. The Restatement waits for all batches up to the horizon, including batches
that the listing counted but did not name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from lethe.base.errors import Verdict
from lethe.base.names import matches_any
from lethe.buffer.digest import BufferDigest, WaitingBatch
from lethe.contract.result import LEGAL_HOLD, RequestOutcome, RequestResult
from lethe.contract.settings import Operation
from lethe.ledger.lineage import shown_again_since
from lethe.uri import overlap

from lethe_operator.actions import earliest
from lethe_operator.conditions import FALSE, SUCCEEDED, UNKNOWN, timestamp
from lethe_operator.erasure import decide as erasure_decide
from lethe_operator.guards import permissions
from lethe_operator.guards.holds import digest, holds_now, invalid_hold, next_end
from lethe_operator.guards.preconditions import misplaced
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, Engine, NoTable, Observation, TableView, Unavailable
from lethe_operator.resources.restatement import Restatement, Unmet
from lethe_operator.restatement.outcome import (
    Assessment,
    Ready,
    RestatementPhase,
    RunHistory,
    finished_before,
    in_ledger,
    planned,
    rolled_back_since,
    stalled,
    with_list,
    without_list,
)
from lethe_operator.runs.retry import Exhausted, NotStarted, RetryAt, Running, Succeeded, back_off_seconds
from lethe_operator.runs.spec import can_do
from lethe_operator.settings import Settings, catalogs_secret_of


def undone(restatement: Restatement, world: Observation, earlier_key: str = "") -> str | Unmet:
    """Find the key of the request that `spec.undoes` names.

    The key from an earlier reconcile or run is used if that Restatement was deleted since.

    Args:
        earlier_key: The key in the document of an earlier run of this Undo; "": there is none.
    """
    assert restatement.spec.undoes is not None
    undo, name = restatement.meta.name, restatement.spec.undoes.name
    named = world.restatements_by_name.get(name)
    if named is None or name == undo:
        met = restatement.status.undoes_key or earlier_key
        if met:
            return met
        return Unmet(
            Reason.UNDONE_RESTATEMENT_NOT_FOUND,
            f"Restatement {undo}: spec.undoes names {name}, but Dataset {restatement.spec.dataset} has no "
            "Restatement of that name in this namespace. If it was deleted, create it again with the same spec: the table's "
            "ledger still contains it, so nothing is done twice.",
        )
    entry = world.table.ledger.requests.get(named.key) if isinstance(world.table, TableView) else None
    if entry is not None and entry.result.get("succeeded", True):
        return named.key
    ended = named.status.condition(SUCCEEDED)
    if entry is None and (ended is None or ended.status == UNKNOWN):
        text = f"Waiting for the end of Restatement {name}, which this one undoes."
        return Unmet(Reason.WAITING_FOR_RESTATEMENT, text, transient=True)
    return Unmet(
        Reason.UNDONE_RESTATEMENT_NOT_COMMITTED,
        f"Restatement {undo}: spec.undoes names {name}, which was not committed to the table "
        f"({ended.reason if ended is not None and ended.reason else 'it failed'}), so there is nothing to undo.",
        final=True,
    )


@dataclass(frozen=True)
class _Why:
    """Why a Restatement is not to be carried out any more."""

    under_way: str
    """Reason until it has ended."""
    ended: str
    """Reason once it has ended."""
    phase: RestatementPhase
    """Once it has ended."""
    cause: str
    """The first sentence of each message."""
    stalled: bool
    """False: the user asked for it, so no action is needed."""


def withdrawn(
    restatement: Restatement, world: Observation, run_history: RunHistory, now: datetime
) -> Assessment | None:
    """The assessment of a Restatement that was cancelled or is past its deadline; None: it is neither."""
    why = _why(restatement, now)
    if why is None:
        return None
    going = run_history.going
    if going is not None and going.engine is Engine.COMMITTER:
        what = f"The committer is carrying it out ({going.job}). When that ends, the status shows whether it was committed."
        return Assessment(RestatementPhase.RUNNING, UNKNOWN, Verdict(why.under_way, f"{why.cause} {what}"))
    if going is not None:
        what = f"The operator is stopping the run {going.job}."
        if run_history.members > 1:
            what = (
                f"The run {going.job} continues if other Restatements of its group still need it. When it ends, the status "
                "shows whether this one was committed."
            )
        return Assessment(
            RestatementPhase.RUNNING, UNKNOWN, Verdict(why.under_way, f"{why.cause} {what}"), cancel_job=going.job
        )
    view = world.table
    # If the table cannot be read for now, the runs may be unknown too.
    if isinstance(view, Unavailable) and (view.transient or run_history.run is not None):
        text = f"{why.cause} The status shows whether it was committed once the operator can read the table: {view.message}"
        return Assessment(RestatementPhase.PENDING, UNKNOWN, Verdict(why.under_way, text))
    last = run_history.run.last if run_history.run is not None else None
    text = f"{why.cause} It was not committed. Nothing was changed."
    return _end(why, text + (f" Its last run was {last.job}." if last is not None else ""))


def without_dataset(restatement: Restatement, dataset: str, now: datetime) -> Assessment | None:
    """The same for a Restatement whose Dataset does not exist, so that there is no table to read."""
    why = _why(restatement, now)
    return None if why is None else _end(why, f"{why.cause} Dataset {dataset} does not exist in this namespace.")


def _why(restatement: Restatement, now: datetime) -> _Why | None:
    name, deadline = restatement.meta.name, restatement.deadline
    if restatement.spec.cancel:
        cause = f"Restatement {name} was cancelled."
        return _Why(Reason.CANCELLING, Reason.CANCELLED, RestatementPhase.CANCELLED, cause, stalled=False)
    if deadline is None or deadline > now:
        return None
    cause = f"The deadline of Restatement {name} passed at {timestamp(deadline)} (spec.deadlineSeconds)."
    return _Why(Reason.DEADLINE_EXCEEDED, Reason.DEADLINE_EXCEEDED, RestatementPhase.FAILED, cause, stalled=True)


def _end(why: _Why, message: str) -> Assessment:
    return Assessment(why.phase, FALSE, Verdict(why.ended, message), stalled=why.stalled)


def not_yet(restatement: Restatement, dataset: Dataset, world: Observation, settings: Settings) -> Assessment | None:
    """The assessment of a Restatement that cannot start now; None: it can."""
    name = restatement.meta.name
    for field, secret in restatement.secrets.items():
        if not may_read_secret(secret.secret, dataset.meta.namespace, settings):
            allowed = ", ".join(settings.erase_secrets) or "none"
            return stalled(
                Verdict(
                    Reason.SECRET_NOT_ALLOWED,
                    f"Restatement {name}: {field} names the Secret {secret.secret}; the chart's value "
                    f"erase.allowedSecrets allows {allowed}. Use a Secret with an allowed name, or extend that value.",
                ),
            )
    for lookup in sorted(restatement.lookups):
        found = world.lookups.get(lookup)
        if found is None:
            text = (
                f"Restatement {name}: spec.rows looks up values in Dataset {lookup}, which does not exist in this namespace, or "
                "is invalid. Create or correct it, or create a new Restatement."
            )
            return Assessment(RestatementPhase.PENDING, UNKNOWN, Verdict(Reason.DATASET_NOT_FOUND, text))
        outside = permissions.of_dataset(found.dataset, settings.boundaries.of(dataset.meta.namespace))
        if outside is not None:
            return stalled(outside)
    if not restatement.searches:
        return None
    gates = [(dataset, world.table, world.buffer)]
    others = (world.lookups[lookup] for lookup in sorted(restatement.lookups - {dataset.meta.name}))
    gates += [(other.dataset, other.table, other.buffer) for other in others]
    awaited = (_awaited(restatement, *gate, is_own=n == 0) for n, gate in enumerate(gates))
    return next((a for a in awaited if a is not None), None)


def _awaited(
    restatement: Restatement, dataset: Dataset, table: object, buffer: object, is_own: bool
) -> Assessment | None:
    """The assessment of a Restatement that waits for batches of a Dataset, whose rows its run must see; None: it does not.

    Args:
        is_own: It is the Restatement's own Dataset; otherwise one in whose table the run looks up values.
    """
    name, of = (
        restatement.meta.name,
        "" if is_own else f" of Dataset {dataset.meta.name}, in whose table it looks up values",
    )
    if not _is_listed_since(buffer, table, restatement):
        text = f"Waiting for the next listing of the buffer{of}, which shows which batches arrived before this Restatement."
        return Assessment(RestatementPhase.QUEUED, UNKNOWN, Verdict(Reason.BUFFER_BEING_LISTED, text))
    before, hidden = _before(restatement, buffer), _may_hide(restatement, buffer)
    if not before and not hidden:
        return None
    least = "at least " if hidden else ""
    which = (
        f"{least}{len(before)} batches that arrived before it wait in the buffer{of} (oldest: {before[0].id!r})"
        if before
        else f"batches that the last listing did not name wait in the buffer{of}, and some may have arrived before it"
    )
    if dataset.spec.consolidation.suspend:
        return stalled(
            Verdict(
                Reason.WAITS_FOR_BATCHES,
                f"Restatement {name}: {which}, and spec.consolidation.suspend of Dataset {dataset.meta.name} is true. Set it to "
                "false, or remove the batches from the buffer.",
            ),
        )
    text = f"{which[:1].upper()}{which[1:]}. They are promoted first, so that the run finds their rows."
    return Assessment(RestatementPhase.QUEUED, UNKNOWN, Verdict(Reason.WAITS_FOR_BATCHES, text))


def may_read_secret(secret: str, namespace: str, settings: Settings) -> bool:
    """Whether Restatements of a namespace may name this Secret."""
    own = (settings.catalogs_secret, catalogs_secret_of(settings, namespace), settings.digest_key_secret)
    return secret not in own and matches_any(settings.erase_secrets, secret)


def _is_listed_since(buffer: object, table: object, restatement: Restatement) -> bool:
    """Whether the last listing shows which batches came before the Restatement.

    It does if it started after the operator knew the Restatement, and no Undo was committed since, which could allow
    more batches to be promoted.
    """
    if _horizon(restatement, buffer) is None or not isinstance(buffer, BufferDigest):
        return False
    return not isinstance(table, TableView) or not shown_again_since(table.ancestry, table.head_id, buffer.head_id)


def wants_listing(restatements: Iterable[Restatement], buffer: object, table: object) -> bool:
    """Whether a Restatement needs a new listing.

    It does if none has started since the operator knows it or since the last Undo, or if all batches that the last
    listing named are promoted and more may wait.
    """
    return any(
        not _is_listed_since(buffer, table, r) or (_may_hide(r, buffer) and not _before(r, buffer))
        for r in _open(restatements)
    )


def may_start_without_listing(restatements: Iterable[Restatement]) -> bool:
    """Whether a Restatement may start, or has started, that does not depend on which batches wait in the buffer."""
    return any(not r.searches and _may_start(r) for r in restatements)


def listed_head(restatements: Iterable[Restatement], buffer: object) -> int | None:
    """The snapshot whose ledger showed which batches a run must wait for.

    None: a run of these Restatements does not wait for batches of the buffer.
    """
    searching = any(r.searches for r in restatements)
    return buffer.head_id if searching and isinstance(buffer, BufferDigest) else None


def waits_for_batches(world: Observation) -> bool:
    """Whether a Restatement waits for batches in the buffer, also one of another Dataset that looks up values in this table.

    The consolidation of these batches then starts at once.
    """
    return any(_before(r, world.buffer) for r in _open((*world.restatements, *world.looked_up_by)))


def searching(restatements: Iterable[Restatement]) -> frozenset[str]:
    """The UIDs of the Restatements that need a horizon from the next listing."""
    return frozenset(r.meta.uid for r in _open(restatements))


def _horizon(restatement: Restatement, buffer: object) -> datetime | None:
    """The write time of the youngest batch that may have come before the Restatement; None: no listing has shown it yet."""
    return buffer.horizons.get(restatement.meta.uid) if isinstance(buffer, BufferDigest) else None


def _before(restatement: Restatement, buffer: object) -> Sequence[WaitingBatch]:
    """The named batches that came before the Restatement and are not promoted yet."""
    horizon = _horizon(restatement, buffer)
    if horizon is None or not isinstance(buffer, BufferDigest):
        return ()
    return [b for b in buffer.oldest if b.oldest_time <= horizon]


def _may_hide(restatement: Restatement, buffer: object) -> bool:
    """Whether batches that the listing did not name may have come before the Restatement."""
    horizon = _horizon(restatement, buffer)
    return horizon is not None and isinstance(buffer, BufferDigest) and buffer.may_hide(horizon)


def _open(restatements: Iterable[Restatement]) -> Iterable[Restatement]:
    """The Restatements that search for rows and may still start."""
    return (r for r in restatements if r.searches and _may_start(r))


def _may_start(restatement: Restatement) -> bool:
    spec = restatement.spec
    return not (spec.suspend or spec.cancel or restatement.meta.deleting) and finished_before(restatement) is None


# In larger groups no status shows the progress of the run: all statuses would be written again every few seconds.
SHOWN_ONE_BY_ONE: Final = 20


@dataclass(frozen=True)
class RestatementContext:
    """Everything that the assessment of a Restatement depends on."""

    restatement: Restatement
    dataset: Dataset
    world: Observation
    blocker: Verdict | None
    """None: runs of the Dataset may start."""
    run_history: RunHistory
    """The outcomes of its runs."""
    now: datetime
    settings: Settings


def assess(context: RestatementContext) -> Assessment:
    """Assess a Restatement.

    The ledger comes first: the result that it contains counts, whatever a pod or an earlier status says. It does not
    contain dry runs; for these the result of the run counts. The result of the run also says whether an Erase by records that was
    created again has the same values.
    """
    restatement, dataset, world, run_history = context.restatement, context.dataset, context.world, context.run_history
    now, settings = context.now, context.settings
    known = in_ledger(restatement, world, run_history) or planned(restatement, run_history)
    if known is not None:
        return replace(
            known,
            failures=run_history.failures,
            erasure=erasure_decide.erasure_state(restatement, world, now, settings.signer),
        )
    final = finished_before(restatement)
    if final is not None:
        return (None if restatement.spec.dry_run else rolled_back_since(restatement, dataset, world, final)) or final
    assessment = withdrawn(restatement, world, run_history, now) or _wanted(context)
    assessment = with_list(assessment, run_history.earlier_request)
    if assessment.finished or assessment.stalled:
        assessment = replace(assessment, failures=run_history.failures)
    if assessment.finished or restatement.deadline is None or restatement.deadline <= now:
        return assessment
    return replace(assessment, look_again=earliest(assessment.look_again, restatement.deadline))


def _wanted(context: RestatementContext) -> Assessment:
    """Assess a Restatement that has not ended and is still wanted."""
    restatement, dataset, world, run_history = context.restatement, context.dataset, context.world, context.run_history
    blocker, now, settings = context.blocker, context.now, context.settings
    going = run_history.going
    if going is None and restatement.spec.suspend:
        return Assessment(
            RestatementPhase.SUSPENDED,
            UNKNOWN,
            Verdict(Reason.SUSPENDED, "spec.suspend is true. The operator starts no run."),
        )
    if going is None and blocker is not None:
        message = f"Dataset {dataset.meta.name} cannot be restated now. {blocker.message}"
        return Assessment(
            RestatementPhase.PENDING, UNKNOWN, Verdict(blocker.reason, message), stalled=not blocker.transient
        )
    refused = None
    if going is None:
        refused = (
            _outside(restatement, settings)
            or _refused(restatement, dataset, world)
            or without_list(restatement, run_history.earlier_request, now)
            or _without_valid_holds(restatement, dataset, world)
            or not_yet(restatement, dataset, world, settings)
        )
    if refused is not None:
        return refused
    if restatement.spec.undoes is None:
        return _by_run(context, "")
    target = undone(restatement, world, run_history.undoes)
    if isinstance(target, str):
        return replace(_by_run(context, target), undoes=target)
    if going is not None:
        return _by_run(context, "")
    if target.transient:
        return Assessment(RestatementPhase.QUEUED, UNKNOWN, target)
    return stalled(target, target.final)


def _outside(restatement: Restatement, settings: Settings) -> Assessment | None:
    outside = permissions.of_restatement(restatement, settings.boundaries.of(restatement.meta.namespace))
    return stalled(outside) if outside is not None else None


def _without_valid_holds(restatement: Restatement, dataset: Dataset, world: Observation) -> Assessment | None:
    """The assessment of a Restatement that may remove rows or values, while it is unknown which rows holds cover."""
    if restatement.spec.operation not in (Operation.ERASE, Operation.REDACT) and not restatement.by_keys:
        return None
    invalid = invalid_hold(dataset, world.table)
    return stalled(invalid) if invalid is not None else None


def _refused(restatement: Restatement, dataset: Dataset, world: Observation) -> Assessment | None:
    replacement, name = restatement.spec.replacement, restatement.meta.name
    if replacement is not None and overlap(dataset.spec.buffer.uri, replacement.uri):
        return stalled(
            Verdict(
                Reason.REPLACEMENT_IN_BUFFER,
                f"Restatement {name}: spec.replacement.uri {replacement.uri} lies inside the buffer of Dataset "
                f"{dataset.meta.name}, so consolidation would load it a second time. Put it outside "
                f"{dataset.spec.buffer.uri}, and create a new Restatement.",
            ),
            final=True,
        )
    misplacement = misplaced(restatement, dataset, world)
    if misplacement is not None:
        return stalled(misplacement)
    if isinstance(world.table, NoTable):
        return Assessment(
            RestatementPhase.PENDING,
            UNKNOWN,
            Verdict(
                Reason.TABLE_NOT_FOUND,
                f"The table {dataset.spec.table.name} does not exist yet. The first consolidation creates it.",
            ),
        )
    return None


def _by_run(context: RestatementContext, undoes: str) -> Assessment:
    restatement, run_history = context.restatement, context.run_history
    match run_history.state:
        case Running(attempt, failures, before):
            held = " spec.suspend is true, so no further run of it starts." if restatement.spec.suspend else ""
            failed = before.message if before is not None and failures.total else ""
            return _running(attempt, run_history.members, failed, held)
        case Succeeded(attempt):
            return _ended(context, attempt, undoes)
        case Exhausted(_, failure, permanent):
            return stalled(failure, final=permanent)
        case RetryAt(at, _, failure):
            again = failure.adding(f"The operator retries at {at:%H:%M:%SZ}.")
            if at > context.now:
                return Assessment(RestatementPhase.QUEUED, UNKNOWN, again, look_again=at)
            return _queued(context, at, undoes, again)
        case NotStarted():
            text = "Waiting for its turn."
            return _queued(context, restatement.created, undoes, Verdict(Reason.QUEUED, text))
        case _:
            assert_never(run_history.state)


def _running(attempt: Attempt, members: int, before: str, held: str) -> Assessment:
    if attempt.suspended:
        text = f"Run {attempt.job} has not started. {attempt.suspended}{held}"
        return Assessment(RestatementPhase.QUEUED, UNKNOWN, Verdict(Reason.RUN_SUSPENDED, text), has_run=True)
    if members > SHOWN_ONE_BY_ONE:
        text = f"Run {attempt.job} is active for {members} Restatements. status.runs of the Dataset shows its progress.{held}"
        return Assessment(RestatementPhase.RUNNING, UNKNOWN, Verdict(Reason.RUNNING, text))
    done = attempt.progress
    tasks = f"{done.tasks_done}/{done.tasks_total} tasks" if done and done.tasks_total else ""
    phase = f"{done.phase} {tasks}".strip() if done else "Starting"
    waits = attempt.waiting or attempt.executors_waiting
    text = f"Run {attempt.job} is active." + (f" {waits}" if waits else "")
    text += (f" The attempt before it failed: {before}" if before else "") + held
    return Assessment(RestatementPhase.RUNNING, UNKNOWN, Verdict(Reason.RUNNING, text), progress=phase)


def _ended(context: RestatementContext, attempt: Attempt, undoes: str) -> Assessment:
    """Assess a Restatement whose run ended with exit code 0, and which the ledger does not contain.

    The run refused or postponed the request, or the commit is not visible.
    """
    mine, tries = context.run_history.answer(context.restatement.key), context.run_history.tries
    at = (attempt.finished or attempt.created) + timedelta(seconds=back_off_seconds(tries, context.settings.retry))
    outcome = mine.outcome if mine is not None else None
    match outcome:
        case RequestOutcome.REFUSED:
            assert mine is not None
            return with_list(stalled(mine.verdict, final=True), mine)
        case RequestOutcome.POSTPONED if mine is not None and mine.reason == LEGAL_HOLD:
            return _under_hold(context, mine, undoes)
        case RequestOutcome.POSTPONED:
            assert mine is not None
            verdict = mine.verdict.adding(f"The operator retries at {at:%H:%M:%SZ}.")
        case RequestOutcome.SUCCEEDED | None:
            unseen = f"{attempt.job} reported success, but the table's ledger does not contain this Restatement."
            verdict = Verdict(Reason.COMMIT_NOT_SEEN, f"{unseen} It is started again.")
        case _:
            assert_never(outcome)
    assessment = _queued(context, at, undoes, verdict)
    if at > context.now:
        assessment = Assessment(RestatementPhase.QUEUED, UNKNOWN, verdict, look_again=at)
    return with_list(assessment, mine)


def _under_hold(context: RestatementContext, mine: RequestResult, undoes: str) -> Assessment:
    """Assess a Restatement of which a run has found that holds cover rows that it would remove.

    Under the same holds another run would find the same, so the next one starts when they change or end.
    """
    run, holds = context.run_history.run, holds_now(context.dataset, context.now)
    intent = run.intent if run is not None else None
    if intent is not None and digest(intent.holds) == digest(holds):
        return Assessment(
            RestatementPhase.QUEUED, UNKNOWN, mine.verdict, look_again=next_end(context.dataset, context.now)
        )
    text = "The holds of the Dataset have changed since its last run. It is started again."
    return _queued(context, context.now, undoes, Verdict(Reason.QUEUED, text))


def _queued(context: RestatementContext, since: datetime, undoes: str, verdict: Verdict) -> Assessment:
    restatement, run_history = context.restatement, context.run_history
    after = run_history.run.run_id if run_history.run is not None else ""
    quick = can_do(restatement, run_history.run)
    ready = Ready(since, undoes, after, run_history.at_most, restatement.spec.dry_run, quick)
    return Assessment(RestatementPhase.QUEUED, UNKNOWN, verdict, ready=ready)
