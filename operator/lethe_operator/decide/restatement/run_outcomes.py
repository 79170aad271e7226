"""The outcomes of a Dataset's runs for each Restatement. Many Restatements may be members of one run. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lethe.contract.result import RequestResult, RestatementGroupResult
from lethe.contract.run import RestatementRequest, RunKind

from lethe_operator.decide.restatement.bisection import FAILURES_ALONE, at_most
from lethe_operator.decide.runs.failures import counted
from lethe_operator.decide.runs.retry import Again, Fresh, GivenUp, Verdict, judge
from lethe_operator.decide.runs.spec import restatement_run_id
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NO_FAILURES, Attempt, AttemptState, Failures, ObservedRun
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings


@dataclass(frozen=True)
class Trial:
    """The outcome of a Restatement's runs."""

    verdict: Verdict
    # The latest run that it was a member of; None: there was none.
    run: ObservedRun | None = None
    # The active attempt of that run; None: there is none.
    going: Attempt | None = None
    # The largest number of members of the next run; None: no limit.
    at_most: int | None = None
    # Attempts of all its runs.
    tries: int = 0
    # Of all its runs, since the Dataset was last edited.
    failures: Failures = NO_FAILURES
    # Key of the request to take back, in the document of the run; "": it is not an Undo.
    undoes: str = ""
    # Its request in the document of the run, if it has `undoes` or the digest of a list; None: not, or the request came from a
    # deleted object of the same name.
    earlier_request: RestatementRequest | None = None
    # Results of the last attempt, by key.
    _answers: Mapping[str, RequestResult] = field(default_factory=dict)

    @property
    def members(self) -> int:
        """The number of members of the run."""
        return max(1, len(self.run.requests)) if self.run is not None else 0

    def answer(self, key: str) -> RequestResult | None:
        """The result of a request in the last attempt; None: there is none."""
        return self._answers.get(key)


NEVER_TRIED = Trial(Fresh(1))


class Trials:
    """The outcomes for all Restatements of a Dataset. Judges each run only once, also if it has many members."""

    def __init__(self, dataset: Dataset, runs: Iterable[ObservedRun], settings: Settings) -> None:
        self._dataset, self._settings = dataset, settings
        self._by_key: dict[str, list[ObservedRun]] = {}
        self._requests: dict[str, dict[str, RestatementRequest]] = {}
        self._without_intent: dict[str, ObservedRun] = {}
        self._judged: dict[tuple[str, str, bool], Trial] = {}
        for run in sorted((r for r in runs if r.kind is RunKind.RESTATEMENT), key=_age):
            self._requests[run.run_id] = {r.key: r for r in run.requests}
            for key in self._requests[run.run_id]:
                self._by_key.setdefault(key, []).append(run)
            if not run.requests:
                self._without_intent[run.run_id] = run

    def runs_of(self, restatement: Restatement) -> tuple[ObservedRun, ...]:
        """The known runs that had this Restatement as a member, oldest first."""
        found = tuple(self._by_key.get(restatement.key, ()))
        if (
            self._without_intent
        ):  # without its document, a run is recognized by its id, and only if it had a single member
            alone = self._without_intent.get(restatement_run_id(self._dataset, restatement))
            found = found if alone is None else tuple(sorted((*found, alone), key=_age))
        return found

    def of(self, restatement: Restatement) -> Trial:
        runs = self.runs_of(restatement)
        if not runs:
            return NEVER_TRIED
        latest = next((r for r in reversed(runs) if r.active), runs[-1])
        request = self._requests[latest.run_id].get(restatement.key)
        grouped = len(latest.requests) > 1
        # A Restatement that was deleted and created again starts from the beginning. In a run of its own, its UID tells the two
        # objects apart; in a group, the creation time does.
        same = request is None or not grouped or request.creation_time == restatement.created
        of = (latest.run_id, "" if grouped else restatement.meta.uid, same)
        if of not in self._judged:
            self._judged[of] = self._judge(latest, runs, of[1], same)
        trial = self._judged[of]
        if request is None or not (request.undoes or request.batch_ids_sha256):
            return trial
        return replace(
            trial,
            undoes=request.undoes,
            earlier_request=request if request.creation_time == restatement.created else None,
        )

    def _judge(self, latest: ObservedRun, runs: tuple[ObservedRun, ...], uid: str, same: bool) -> Trial:
        generation = self._dataset.meta.generation
        going = next((a for a in latest.attempts if a.state is AttemptState.ACTIVE), None)
        if not same and going is None:
            return Trial(Fresh(latest.last.number + 1 if latest.last else 1))
        verdict = judge(latest, generation, self._settings, uid)
        result = latest.last.result if latest.last is not None else None
        answers = {r.key: r for r in result.requests} if isinstance(result, RestatementGroupResult) else {}
        tries = sum(r.last.number for r in runs if r.last is not None)
        failures = sum((_failures(r, generation, uid) for r in runs), NO_FAILURES)
        found = Trial(verdict, latest, going, at_most(runs, generation), tries, failures, _answers=answers)
        if found.members == 1 and isinstance(verdict, Again) and verdict.failures.run >= FAILURES_ALONE:
            return replace(found, verdict=_given_up(verdict))
        if found.at_most is not None and found.at_most < found.members:
            return replace(found, verdict=_halved(verdict, found.at_most))
        return found


def _halved(verdict: Verdict, members: int) -> Verdict:
    """The verdict for a group that must be halved. A smaller group is another run, so it starts without a delay."""
    if (isinstance(verdict, GivenUp) and verdict.permanent) or not isinstance(verdict, Again | GivenUp):
        return verdict
    last = verdict.attempt
    text = f"{verdict.message} The next run has at most {members} Restatements of this group."
    return Again(last.finished or last.created, 1, verdict.reason, text, NO_FAILURES, last)


def _given_up(verdict: Again) -> GivenUp:
    how_often = f"It failed {verdict.failures.run} times in a run of its own."
    remedy = "The operator retries it only after an edit of its Dataset, or if it is deleted and created again."
    text = f"{verdict.message} {how_often} {remedy}"
    return GivenUp(verdict.attempt, verdict.reason, text, permanent=False)


def _failures(run: ObservedRun, generation: int, uid: str) -> Failures:
    """The failures of a run. The UID counts only for a run with a single member."""
    return counted(run.attempts, generation, uid if len(run.requests) <= 1 else "")


def _age(run: ObservedRun) -> float:
    """Sort key: the creation of the last Job. A run without a Job is the latest, because its document is stored after the runs
    before it have ended."""
    return run.last.created.timestamp() if run.last else float("inf")
