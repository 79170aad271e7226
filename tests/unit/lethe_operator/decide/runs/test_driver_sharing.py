"""Who starts now, and who shares with whom."""

from collections.abc import Sequence
from typing import Any

import pytest
from lethe_operator.build.sharing import Company, company
from lethe_operator.build.sizing import merged, size
from lethe_operator.decide.runs import spec as run_specs
from lethe_operator.decide.runs.driver_sharing import DriverGroups, WaitingRun, forgotten, gather
from lethe_operator.resources.dataset import MIB, Dataset, RunTemplate
from lethe_operator.resources.members import SharedJob
from lethe_operator.resources.observed import AttemptState, ObservedRun
from lethe_operator.settings import SharedRuns

from tests.support.builders import NOW, ago
from tests.support.resources import a_buffered, a_consolidation, a_dataset, a_run, a_vacuum, an_attempt

LIMITS = SharedRuns(enabled=True, gather_seconds=5, max_datasets=3, max_bytes_per_dataset=64 * MIB)


def waiting(dataset: str, seconds: float, company: str = "main") -> WaitingRun[str]:
    return WaitingRun(dataset, company, ago(seconds=seconds))


def in_seconds(seconds: float) -> Any:
    return ago(seconds=-seconds)


@pytest.mark.parametrize(
    ("there", "groups", "look_again"),
    [
        ([], (), None),
        ([waiting("a", 2)], (), in_seconds(3)),
        ([waiting("a", 5)], (("a",),), None),
        ([waiting("a", 5), waiting("b", 0)], (("a", "b"),), None),
        ([waiting("b", 4), waiting("a", 1)], (), in_seconds(1)),
        ([waiting("c", 1), waiting("b", 1), waiting("a", 1)], (("a", "b", "c"),), None),
        ([waiting(n, 1) for n in "abcd"], (("a", "b", "c"),), in_seconds(4)),
        ([waiting(n, 9) for n in "abcd"], (("a", "b", "c"), ("d",)), None),
        ([waiting("a", 9), waiting("b", 9, "other"), waiting("c", 8)], (("a", "c"), ("b",)), None),
        ([waiting("a", 9), waiting("b", 1, "other")], (("a",),), in_seconds(4)),
    ],
    ids=[
        "nobody",
        "the first waits",
        "nobody came",
        "who came in time goes along",
        "the window is the first one's",
        "as many as fit need not wait",
        "who is too many waits for the next",
        "who is too many and has waited goes too",
        "only one company goes together",
        "each company has a window of its own",
    ],
)
def test_who_goes_now(there: list[WaitingRun[str]], groups: tuple[tuple[str, ...], ...], look_again: Any) -> None:
    assert gather(there, (), NOW, LIMITS) == DriverGroups(groups, look_again)


@pytest.mark.parametrize(
    ("there", "groups", "look_again"),
    [
        ([waiting("a", 6), waiting("b", 2)], (), in_seconds(1)),
        ([waiting("a", 10), waiting("b", 2)], (("a",),), in_seconds(1)),
        ([waiting("b", 60)], (), in_seconds(1)),
    ],
    ids=["it is waited for", "but not for long", "alone it goes when it can"],
)
def test_one_about_which_something_is_being_decided_cannot_go(
    there: list[WaitingRun[str]], groups: tuple[tuple[str, ...], ...], look_again: Any
) -> None:
    assert gather(there, {"b"}, NOW, LIMITS) == DriverGroups(groups, look_again)


def companies(
    dataset: Dataset,
    run_bytes: int = 10,
    limits: SharedRuns = LIMITS,
    chart: Any = None,
    runs: Sequence[ObservedRun] = (),
) -> Company | None:
    template = merged(RunTemplate.model_validate(chart or {}), dataset.spec.run_template)
    return company(a_consolidation(dataset=dataset), run_bytes, size(run_bytes, template), template, runs, limits)


def test_datasets_of_one_catalog_and_one_template_are_one_company() -> None:
    a, b = a_dataset("a"), a_dataset("b", table={"catalog": "main", "name": "x.y"})
    elsewhere = a_dataset("c", table={"catalog": "other", "name": "x.y"})
    larger = a_dataset("d", runTemplate={"driver": {"memory": "4Gi"}})
    pool = a_dataset("e", runTemplate={"podTemplate": {"spec": {"nodeSelector": {"pool": "x"}}}})

    assert companies(a) == companies(b) != None  # noqa: E711
    assert len({companies(d) for d in (a, elsewhere, larger, pool)}) == 4


def test_the_charts_template_and_the_same_said_by_the_dataset_are_one() -> None:
    chart = {"driver": {"memory": "4Gi"}}
    says_so = a_dataset("a", runTemplate=chart)

    assert companies(says_so, chart=chart) == companies(a_dataset("b"), chart=chart)


@pytest.mark.parametrize(
    "changes",
    [
        {"run_bytes": 64 * MIB + 1},
        {"chart": {"executors": {"min": 1}}},
        {"runs": [a_run(a_consolidation(), an_attempt(a_consolidation(), AttemptState.FAILED))]},
        {"limits": SharedRuns()},
    ],
    ids=["too many bytes", "with executors", "its last one failed", "not wished for"],
)
def test_whose_driver_is_its_own(changes: dict[str, Any]) -> None:
    assert companies(a_dataset()) is not None
    assert companies(a_dataset(), run_bytes=64 * MIB) is not None

    assert companies(a_dataset(), **changes) is None


def test_who_failed_goes_alone_until_a_run_has_ended_well() -> None:
    """Other batches are another run, whose first attempt would take others along as the one before did."""
    poison, cured = a_consolidation(a_buffered("A")), a_consolidation(a_buffered("B"))
    failed = an_attempt(poison, AttemptState.FAILED, finished_seconds=60)
    well = an_attempt(cured, AttemptState.SUCCEEDED, finished_seconds=30)
    vacuum = an_attempt(a_vacuum(), AttemptState.FAILED, finished_seconds=10)

    assert companies(a_dataset(), runs=[a_run(poison, failed)]) is None
    assert companies(a_dataset(), runs=[a_run(cured, well), a_run(poison, failed), a_run(a_vacuum(), vacuum)])


def test_only_a_run_that_promotes_batches_shares() -> None:
    alone = size(0, RunTemplate())
    for run in (a_vacuum(), run_specs.reanchoring(a_dataset(), 7)):
        assert company(run, 0, alone, RunTemplate(), (), LIMITS) is None
    assert company(a_consolidation(a_buffered("A")), 0, alone, RunTemplate(), (), LIMITS) is not None


@pytest.mark.parametrize(
    ("over", "needed_by", "goes"),
    [(True, set(), True), (True, {"gone"}, True), (True, {"a", "gone"}, False), (False, set(), False)],
    ids=["left by all", "only a Dataset that is gone needs it", "one needs it", "its driver is there"],
)
def test_a_shared_job_goes_when_nobody_needs_it(over: bool, needed_by: set[str], goes: bool) -> None:
    found = forgotten([SharedJob("j", over, (), frozenset(needed_by))], {"a", "b"})

    assert found == (("j",) if goes else ())
