"""Assesses one Restatement. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from lethe.contract.result import RequestOutcome
from lethe.uri import overlap

from lethe_operator.decide.actions import earliest
from lethe_operator.decide.conditions import UNKNOWN
from lethe_operator.decide.erasure import status as erasure_status
from lethe_operator.decide.guards import boundaries
from lethe_operator.decide.guards.preconditions import RunBlocker
from lethe_operator.decide.guards.references import misplaced
from lethe_operator.decide.restatement import id_list as id_lists
from lethe_operator.decide.restatement import row_search_gate as erasure
from lethe_operator.decide.restatement.assessment import Assessment, Ready, RestatementPhase, stalled
from lethe_operator.decide.restatement.cancellation import withdrawn
from lethe_operator.decide.restatement.id_list import without_list
from lethe_operator.decide.restatement.outcome import finished_before, in_ledger, planned, rolled_back_since
from lethe_operator.decide.restatement.run_outcomes import Trial
from lethe_operator.decide.restatement.undo import undone
from lethe_operator.decide.runs.committer import can_do
from lethe_operator.decide.runs.failures import back_off_seconds
from lethe_operator.decide.runs.retry import Again, Ended, Fresh, GivenUp, Going
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, NoTable, World
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings

# In larger groups no status shows the progress of the run: all statuses would be written again every few seconds.
SHOWN_ONE_BY_ONE: Final = 20


@dataclass(frozen=True)
class RestatementContext:
    """Everything that the assessment of a Restatement depends on."""

    restatement: Restatement
    dataset: Dataset
    world: World
    blocker: RunBlocker | None  # None: runs of the Dataset may start
    trial: Trial  # the outcomes of its runs
    now: datetime
    settings: Settings


def assess(context: RestatementContext) -> Assessment:
    """Assess a Restatement.

    The ledger comes first: the result that it contains counts, whatever a pod or an earlier status says. It does not
    contain dry runs; for these the result of the run counts. The result of the run also says whether an Erase by records that was
    created again has the same values.
    """
    restatement, dataset, world, trial = context.restatement, context.dataset, context.world, context.trial
    now, settings = context.now, context.settings
    known = in_ledger(restatement, world, trial) or planned(restatement, trial)
    if known is not None:
        return replace(
            known,
            failures=trial.failures,
            erasure=erasure_status.erasure_state(restatement, world, now, settings.signer),
        )
    final = finished_before(restatement)
    if final is not None:
        return (None if restatement.spec.dry_run else rolled_back_since(restatement, dataset, world, final)) or final
    found = withdrawn(restatement, world, trial, now) or _wanted(context)
    found = replace(found, plan={**id_lists.seen(trial.earlier_request), **(found.plan or {})})
    if found.finished or found.stalled:
        found = replace(found, failures=trial.failures)
    if found.finished or restatement.deadline is None or restatement.deadline <= now:
        return found
    return replace(found, look_again=earliest(found.look_again, restatement.deadline))


def _wanted(context: RestatementContext) -> Assessment:
    """Assess a Restatement that has not ended and is still wanted."""
    restatement, dataset, world, trial = context.restatement, context.dataset, context.world, context.trial
    blocker, now, settings = context.blocker, context.now, context.settings
    going = trial.going
    if going is None and restatement.spec.suspend:
        return Assessment(
            RestatementPhase.SUSPENDED, UNKNOWN, Reason.SUSPENDED, "spec.suspend is true. The operator starts no run."
        )
    if going is None and blocker is not None:
        message = f"Dataset {dataset.meta.name} cannot be restated now. {blocker.message}"
        return Assessment(RestatementPhase.PENDING, UNKNOWN, blocker.reason, message, stalled=not blocker.transient)
    refused = None
    if going is None:
        refused = (
            _outside(restatement, settings)
            or _refused(restatement, dataset, world)
            or without_list(restatement, trial.earlier_request, now)
            or erasure.not_yet(restatement, dataset, world, settings)
        )
    if refused is not None:
        return refused
    if restatement.spec.undoes is None:
        return _by_run(context, "")
    target = undone(restatement, world, trial.undoes)
    if target.key or going is not None:
        return replace(_by_run(context, target.key), undoes=target.key)
    if target.waits:
        return Assessment(RestatementPhase.QUEUED, UNKNOWN, target.reason, target.message)
    return stalled(target.reason, target.message, target.final)


def _outside(restatement: Restatement, settings: Settings) -> Assessment | None:
    found = boundaries.of_restatement(restatement, settings.boundaries.of(restatement.meta.namespace))
    return stalled(Reason.OUTSIDE_BOUNDARY, found) if found else None


def _refused(restatement: Restatement, dataset: Dataset, world: World) -> Assessment | None:
    replacement, name = restatement.spec.replacement, restatement.meta.name
    if replacement is not None and overlap(dataset.spec.buffer.uri, replacement.uri):
        return stalled(
            Reason.REPLACEMENT_IN_BUFFER,
            f"Restatement {name}: spec.replacement.uri {replacement.uri} lies inside the buffer of Dataset "
            f"{dataset.meta.name}, so consolidation would load it a second time. Put it outside "
            f"{dataset.spec.buffer.uri}, and create a new Restatement.",
            final=True,
        )
    found = misplaced(restatement, dataset, world)
    if found is not None:
        return stalled(found.reason, found.message)
    if isinstance(world.table, NoTable):
        return Assessment(
            RestatementPhase.PENDING,
            UNKNOWN,
            Reason.TABLE_NOT_FOUND,
            f"The table {dataset.spec.table.name} does not exist yet. The first consolidation creates it.",
        )
    return None


def _by_run(context: RestatementContext, undoes: str) -> Assessment:
    restatement, trial = context.restatement, context.trial
    match trial.verdict:
        case Going(attempt, failures, _, before):
            held = " spec.suspend is true, so no further run of it starts." if restatement.spec.suspend else ""
            return _running(attempt, trial.members, (before if failures.total else ""), held)
        case Ended(attempt):
            return _ended(context, attempt, undoes)
        case GivenUp(_, reason, message, permanent):
            return stalled(reason, message, final=permanent)
        case Again(at, _, reason, message):
            again = f"{message} The operator retries at {at:%H:%M:%SZ}."
            if at > context.now:
                return Assessment(RestatementPhase.QUEUED, UNKNOWN, reason, again, look_again=at)
            return _queued(context, at, undoes, reason, again)
        case Fresh():
            text = "Waiting for its turn."
            return _queued(context, restatement.created, undoes, Reason.QUEUED, text)
        case _:
            assert_never(trial.verdict)


def _running(attempt: Attempt, members: int, before: str, held: str) -> Assessment:
    if attempt.suspended:
        text = f"Run {attempt.job} has not started. {attempt.suspended}{held}"
        return Assessment(RestatementPhase.QUEUED, UNKNOWN, Reason.RUN_SUSPENDED, text, has_run=True)
    if members > SHOWN_ONE_BY_ONE:
        text = f"Run {attempt.job} is active for {members} Restatements. status.runs of the Dataset shows its progress.{held}"
        return Assessment(RestatementPhase.RUNNING, UNKNOWN, Reason.RUNNING, text)
    done = attempt.progress
    tasks = f"{done.tasks_done}/{done.tasks_total} tasks" if done and done.tasks_total else ""
    phase = f"{done.phase} {tasks}".strip() if done else "Starting"
    waits = attempt.waiting or attempt.executors_waiting
    text = f"Run {attempt.job} is active." + (f" {waits}" if waits else "")
    text += (f" The attempt before it failed: {before}" if before else "") + held
    return Assessment(RestatementPhase.RUNNING, UNKNOWN, Reason.RUNNING, text, progress=phase)


def _ended(context: RestatementContext, attempt: Attempt, undoes: str) -> Assessment:
    """Assess a Restatement whose run ended with exit code 0, although the ledger does not contain the request: the run refused or
    postponed it, or the commit is not visible."""
    mine, tries = context.trial.answer(context.restatement.key), context.trial.tries
    at = (attempt.finished or attempt.created) + timedelta(seconds=back_off_seconds(tries, context.settings.retry))
    outcome = mine.outcome if mine is not None else None
    match outcome:
        case RequestOutcome.REFUSED:
            assert mine is not None
            return replace(stalled(mine.reason, mine.message, final=True), plan=id_lists.seen(mine))
        case RequestOutcome.POSTPONED:
            assert mine is not None
            reason, message = mine.reason, f"{mine.message} The operator retries at {at:%H:%M:%SZ}."
        case RequestOutcome.SUCCEEDED | None:
            reason = str(Reason.COMMIT_NOT_SEEN)
            unseen = f"{attempt.job} reported success, but the table's ledger does not contain this Restatement."
            message = f"{unseen} It is started again."
        case _:
            assert_never(outcome)
    found = _queued(context, at, undoes, reason, message)
    if at > context.now:
        found = Assessment(RestatementPhase.QUEUED, UNKNOWN, reason, message, look_again=at)
    return replace(found, plan=id_lists.seen(mine)) if mine is not None else found


def _queued(context: RestatementContext, since: datetime, undoes: str, reason: str, message: str) -> Assessment:
    restatement, trial = context.restatement, context.trial
    after = trial.run.run_id if trial.run is not None else ""
    quick = can_do(restatement, context.dataset, trial.run)
    ready = Ready(since, undoes, after, trial.at_most, restatement.spec.dry_run, quick)
    return Assessment(RestatementPhase.QUEUED, UNKNOWN, reason, message, ready=ready)
