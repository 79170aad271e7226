"""A request that kills its run answers for nobody: its group is halved until it is alone, and the others are done."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from lethe.contract.result import Phase, Progress
from lethe_operator.actions import Actions, Launch
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, ObservedRun
from lethe_operator.resources.restatement import Restatement

from tests.support.builders import NOW, a_ledger, a_request_entry
from tests.support.resources import (
    SETTINGS,
    a_dataset,
    a_group,
    a_restatement,
    a_result,
    a_run,
    a_table,
    a_world,
    an_attempt,
)
from tests.support.statuses import decide

CRASHED: dict[str, Any] = {"exit_code": 134}
BEGUN = Progress(run_id="x", phase=Phase.PLANNING, updated_time=NOW)


def requests(count: int) -> list[Restatement]:
    return [a_restatement(f"r{n:04}", batchIds=[f"b{n}"]) for n in range(count)]


@dataclass
class BisectionStory:
    """Runs as they come, each of which fails if it holds one of the bad ones, and commits else. It takes 30 seconds."""

    restatements: list[Restatement]
    bad: set[str]
    fails: dict[str, Any] = field(default_factory=lambda: CRASHED)
    dataset: Dataset = field(default_factory=a_dataset)
    now: datetime = NOW
    runs: dict[str, ObservedRun] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    groups: list[tuple[int, bool]] = field(default_factory=list)

    def decided(self) -> Actions:
        ledger = a_ledger(requests=[a_request_entry(key) for key in self.done])
        world = a_world(restatements=tuple(self.restatements), runs=tuple(self.runs.values()), table=a_table(ledger))
        return decide(self.dataset, world, self.now, SETTINGS)

    def step(self) -> None:
        actions = self.decided()
        if not actions.launches:
            assert actions.look_again is not None
            self.now = actions.look_again
            return
        (launch,) = actions.launches
        self.end(launch)

    def end(self, launch: Launch) -> None:
        run = launch.run
        assert run.restatement is not None
        keys = [r.key for r in run.restatement.requests]
        failed = any(r.name in self.bad for r in run.restatement.requests)
        began, self.now = self.now, self.now + timedelta(seconds=30)
        state = AttemptState.FAILED if failed else AttemptState.SUCCEEDED
        attempt = replace(
            an_attempt(run, state, number=run.attempt, for_uid=launch.for_uid, **(self.fails if failed else {})),
            created=began,
            finished=self.now,
            generation=self.dataset.meta.generation,
            failures_before=launch.failures,
        )
        known = self.runs.get(run.run_id)
        attempts = (*known.attempts, attempt)[-3:] if known else (attempt,)  # as the operator keeps them
        self.runs[run.run_id] = a_run(run, *attempts)
        self.groups.append((len(keys), failed))
        if not failed:
            self.done += keys

    @property
    def failures(self) -> list[int]:
        return [size for size, failed in self.groups if failed]


@pytest.mark.parametrize(("count", "bad"), [(20, 11), (7, 0), (2, 1)])
def test_a_request_that_kills_its_run_is_alone_after_log_n_failures_and_the_others_are_done(
    count: int, bad: int
) -> None:
    story = BisectionStory(requests(count), {f"ns/r{bad:04}"})

    for _ in range(100):
        if len(story.done) == count - 1 and story.failures[-1] == 1:
            break
        story.step()

    assert len(story.done) == len(set(story.done)) == count - 1
    expected = [count, count]
    while expected[-1] > 1:
        expected.append((expected[-1] + 1) // 2)
    # One half of an odd number is smaller by one, and it may lie in that.
    assert len(story.failures) in (len(expected), len(expected) - 1)
    assert all(found <= most for found, most in zip(story.failures, expected, strict=False))


def test_what_comes_meanwhile_is_not_drawn_into_it() -> None:
    story = BisectionStory(requests(32), {"ns/r0000"})
    for _ in range(20):
        if len(story.failures) == 3:
            break
        story.step()

    created = (story.now - timedelta(seconds=60)).isoformat()
    story.restatements.append(a_restatement("new", batchIds=["n"], meta={"creationTimestamp": created}))
    for _ in range(20):
        if any(key.startswith("ns/new/") for key in story.done):
            break
        story.step()

    (run,) = [r for r in story.runs.values() if any(q.name == "ns/new" for q in r.requests)]
    assert [q.name for q in run.requests] == ["ns/new"]


def test_the_bad_one_is_tried_again_with_growing_pauses_once_it_is_alone() -> None:
    story = BisectionStory(requests(2), {"ns/r0000"})
    for _ in range(100):
        if story.failures[-2:] == [1, 1]:
            break
        story.step()

    assert story.decided().look_again == story.now + timedelta(seconds=20)


@pytest.mark.parametrize(
    "fails",
    [
        {"exit_code": None},
        {"exit_code": 143},
        {"exit_code": 137},
        {"exit_code": 20, "result": a_result(a_group(), "Failed", reason="CatalogOrStorageAway", message="away")},
        {"exit_code": 20, "result": a_result(a_group(), "Failed", reason="LedgerMoved", message="moved")},
        {"exit_code": None, "job_reason": "DeadlineExceeded"},
    ],
    ids=["its node went", "it was stopped", "it was killed", "the storage is away", "others were faster", "no pod"],
)
def test_what_lies_outside_of_a_run_halves_no_group(fails: dict[str, Any]) -> None:
    """The same would happen to any part of it."""
    story = BisectionStory(requests(16), {"ns/r0000"}, fails)

    for _ in range(12):
        story.step()

    assert len(story.failures) > 3
    assert set(story.failures) == {16}


@pytest.mark.parametrize(
    "fails",
    [
        CRASHED,
        {"exit_code": 137, "oom": True},
        {"exit_code": None, "job_reason": "DeadlineExceeded", "progress": BEGUN},
        {"exit_code": 20, "result": a_result(a_group(), "Failed", reason="UnexpectedError", message="KeyError")},
        {"exit_code": 20, "result": a_result(a_group(), "Failed", reason="SparkFailed", message="JvmError")},
    ],
    ids=["it crashed", "out of memory", "too long", "an error nobody thought of", "Spark failed"],
)
def test_what_a_smaller_group_may_be_spared_halves_it(fails: dict[str, Any]) -> None:
    story = BisectionStory(requests(16), {"ns/r0000"}, fails)

    for _ in range(12):
        story.step()

    assert story.failures[:4] == [16, 16, 8, 4]


def test_an_edited_dataset_is_tried_with_the_whole_group_again() -> None:
    """With more memory, say."""
    story = BisectionStory(requests(16), {"ns/r0000"}, {"exit_code": 137, "oom": True})
    for _ in range(100):
        if len(story.failures) == 2:
            break
        story.step()

    story.dataset = a_dataset(meta={"generation": 2})
    story.bad.clear()
    for _ in range(3):
        if len(story.groups) < 3:
            story.step()

    assert story.groups[2] == (16, False)


def test_what_a_run_says_of_itself_for_good_is_said_of_all_its_members() -> None:
    """A request that is refused has an answer of its own; this is about the Dataset or the table."""
    result = a_result(a_group(), "Failed", reason="BatchColumnMissing", message="no column", permanent=True)
    story = BisectionStory(requests(4), {"ns/r0000"}, {"exit_code": 10, "result": result})
    story.step()

    statuses = story.decided().restatement_statuses

    assert {s["phase"] for s in statuses.values()} == {"Failed"}
    assert len(statuses) == 4
