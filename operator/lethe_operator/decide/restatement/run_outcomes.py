"""What the runs of a Dataset say of each of its Restatements: many may have been members of one run. Pure."""

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
    """How a Restatement fared. `run`: the latest that it was a member of; `going`: its attempt that is under way; `at_most`: so
    many may share the next one, None for as many as there are; `tries`: attempts of all its runs; `failures` of all its runs,
    since the Dataset was edited; `undoes`: what an Undo was told to take back; `told`: its request as the run was told it, None
    if that was another object's of the name."""

    verdict: Verdict
    run: ObservedRun | None = None
    going: Attempt | None = None
    at_most: int | None = None
    tries: int = 0
    failures: Failures = NO_FAILURES
    undoes: str = ""
    told: RestatementRequest | None = None
    _answers: Mapping[str, RequestResult] = field(default_factory=dict)

    @property
    def members(self) -> int:
        """Of the run."""
        return max(1, len(self.run.requests)) if self.run is not None else 0

    def answer(self, key: str) -> RequestResult | None:
        """What the last attempt said became of a request."""
        return self._answers.get(key)


NEVER_TRIED = Trial(Fresh(1))


class Trials:
    """Each run is judged once, however many were its members."""

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
        """Those that had it as a member, as far as they are remembered, oldest first."""
        found = tuple(self._by_key.get(restatement.key, ()))
        if self._without_intent:  # of these it is known only when it was alone
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
        # One of the same name and spec that was created anew starts anew: alone it is known by its UID, as a member by its age.
        same = request is None or not grouped or request.creation_time == restatement.created
        of = (latest.run_id, "" if grouped else restatement.meta.uid, same)
        if of not in self._judged:
            self._judged[of] = self._judge(latest, runs, of[1], same)
        trial = self._judged[of]
        if request is None or not (request.undoes or request.batch_ids_sha256):
            return trial
        return replace(
            trial, undoes=request.undoes, told=request if request.creation_time == restatement.created else None
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
    """A smaller group is another run: it starts without the pause that what is tried again as it was has to make."""
    if (isinstance(verdict, GivenUp) and verdict.permanent) or not isinstance(verdict, Again | GivenUp):
        return verdict
    last = verdict.attempt
    text = f"{verdict.message} At most {members} of its group are tried together next."
    return Again(last.finished or last.created, 1, verdict.reason, text, NO_FAILURES, last)


def _given_up(verdict: Again) -> GivenUp:
    how_often = f"It failed {verdict.failures.run} times by itself."
    text = f"{verdict.message} {how_often} It is not tried again unless its Dataset is edited, or it is created anew."
    return GivenUp(verdict.attempt, verdict.reason, text, permanent=False)


def _failures(run: ObservedRun, generation: int, uid: str) -> Failures:
    """Of a run, whether it was of one alone or of a group."""
    return counted(run.attempts, generation, uid if len(run.requests) <= 1 else "")


def _age(run: ObservedRun) -> float:
    """An intent without a Job is the latest: it is stored when the ones before it have ended."""
    return run.last.created.timestamp() if run.last else float("inf")
