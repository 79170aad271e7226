"""Whether a vacuum is due, under which policy, and what is told to the others."""

from dataclasses import replace
from typing import Any

import pytest
from lethe.base.errors import Verdict
from lethe.contract.status import PolicyDataset
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, AttemptState, Observation, TableView
from lethe_operator.resources.vacuum_policy import VacuumPolicy
from lethe_operator.vacuum import status as vacuum_status
from lethe_operator.vacuum.decide import VacuumChoice, decide_vacuum

from tests.support.builders import NOW, a_ledger, ago
from tests.support.resources import SETTINGS, a_dataset, a_policy, a_run, a_table, a_vacuum, a_world, an_attempt
from tests.support.statuses import a_policy_status, document, vacuum_documents
from tests.unit.lethe_operator.vacuuming import VacuumStory, a_plan

FOUR = a_table(a_ledger("A", "B", "C", "D"))


def decided(
    *policies: VacuumPolicy,
    table: TableView = FOUR,
    dataset: Dataset | None = None,
    blocker: Verdict | None = None,
    **world: Any,
) -> VacuumChoice:
    seen: Observation = a_world(table=table, policies=policies, **world)
    verdict = decide_vacuum(dataset or a_dataset(), seen, blocker, NOW, SETTINGS)
    return vacuum_documents(verdict)


def told(verdict: VacuumChoice, policy: str = "air") -> tuple[str, str]:
    entry = verdict.entries[policy]
    return entry["decision"], entry["reason"]


def attempt(state: AttemptState, **changes: Any) -> Attempt:
    return an_attempt(a_vacuum(), state, **changes)


def test_enough_tombstones_make_it_due() -> None:
    verdict = decided(a_policy())

    assert told(verdict) == ("Due", "TooManyTombstones")
    assert verdict.launch is not None
    assert (verdict.launch.run.vacuum.policy, verdict.launch.run.vacuum.expire_snapshots) == ("ns/air", True)  # type: ignore[union-attr]
    assert a_vacuum().run_id == verdict.launch.run.run_id
    assert verdict.entries["air"]["activeTombstones"] == 4


def test_the_snapshots_rules_of_the_dataset_go_into_the_run() -> None:
    dataset = a_dataset(snapshots={"maxAgeSeconds": 0, "minToKeep": 1, "maxCount": 7})

    limits = decided(a_policy(), dataset=dataset).launch.run.vacuum.snapshots  # type: ignore[union-attr]

    assert (limits.max_age_seconds, limits.min_to_keep, limits.max_count) == (0, 1, 7)


def test_one_tombstone_less_does_not() -> None:
    verdict = decided(a_policy(), table=a_table(a_ledger("A", "B", "C")))

    assert (told(verdict), verdict.launch) == (("Later", "BelowTriggers"), None)
    assert "3 active tombstones, the limit is 4" in verdict.entries["air"]["message"]


def test_without_a_policy_nothing_is_purged() -> None:
    assert (decided().entries, decided().launch) == ({}, None)


def test_the_most_specific_policy_decides_even_when_it_does_not_purge() -> None:
    """Else a general policy would purge what a special one wants approved."""
    dataset = a_dataset(meta={"labels": {"team": "air"}})
    careful = a_policy("careful", datasetSelector={"matchLabels": {"team": "air"}}, approval="Manual")

    verdict = decided(a_policy("all"), careful, dataset=dataset)

    assert (told(verdict, "careful")[0], told(verdict, "all")) == ("Due", ("Later", "LessSpecific"))
    assert verdict.launch.run.vacuum.plan_only  # type: ignore[union-attr]


def test_both_policies_show_a_tie() -> None:
    old = a_policy("old", meta={"creationTimestamp": ago(hours=9).isoformat()}, triggers={"activeTombstones": 9})

    verdict = decided(a_policy("young"), old)

    assert (told(verdict, "old"), told(verdict, "young"), verdict.launch) == (
        ("Later", "TieWon"),
        ("Later", "TieLost"),
        None,
    )
    assert "young" in verdict.entries["old"]["message"]
    assert "old" in verdict.entries["young"]["message"]


def test_a_dataset_that_cannot_run_is_not_vacuumed() -> None:
    verdict = decided(a_policy(), blocker=Verdict("TableClaimed", "It belongs to ns/other."))

    assert (told(verdict), verdict.launch) == (("Later", "DatasetNotReady"), None)


def test_one_at_a_time() -> None:
    running = a_run(a_vacuum("1"), an_attempt(a_vacuum("1")))

    verdict = decided(a_policy(), runs=(running,))

    assert (told(verdict), verdict.launch) == (("Running", "Running"), None)


def test_one_vacuum_per_snapshot_however_it_ended() -> None:
    done = a_run(a_vacuum(), attempt(AttemptState.SUCCEEDED), intent=False)

    verdict = decided(a_policy(), runs=(done,))

    assert (told(verdict), verdict.launch) == (("Later", "NothingLeft"), None)
    assert verdict.entries["air"]["lastRunTime"] == "2026-03-01T11:59:30Z"
    assert None is not decided(a_policy(), runs=(done,), table=a_table(FOUR.ledger, head_id=5)).launch


def test_a_failed_vacuum_that_committed_is_not_repeated() -> None:
    run = a_run(a_vacuum(), attempt(AttemptState.FAILED, exit_code=None))
    table = a_table(a_ledger("A"), run_ids=frozenset({run.run_id}))

    verdict = decided(a_policy(), runs=(run,), table=table)

    assert ((run.run_id,), None) == (verdict.abandoned, verdict.launch)


def test_a_vacuum_that_died_after_its_first_step_is_repeated_to_do_the_rest() -> None:
    """The head's ledger is its own, and still it has not ended."""
    run = a_run(a_vacuum(), attempt(AttemptState.FAILED, exit_code=None))
    table = a_table(replace(a_ledger("A"), pending_run=run.run_id))

    verdict = decided(a_policy(), runs=(run,), table=table)

    assert verdict.launch is not None
    assert (verdict.abandoned, verdict.launch.run.attempt) == ((), 2)


def test_a_vacuum_that_failed_for_good_rests_before_another_snapshot_is_tried() -> None:
    def after(seconds: float) -> VacuumChoice:
        run = a_run(a_vacuum(), attempt(AttemptState.FAILED, exit_code=10, finished_seconds=seconds))
        return decided(a_policy(), runs=(run,), table=a_table(FOUR.ledger, head_id=5))

    assert (None, ago(seconds=-60)) == (after(300).launch, after(300).look_again)
    assert None is not after(360).launch


def with_entry(old: dict[str, Any], **entry: Any) -> dict[str, Any]:
    new = vacuum_status.with_entry(a_policy_status(**old), PolicyDataset(**entry))
    return dict(document(new))


def test_the_status_of_a_policy_keeps_what_an_entry_does_not_know() -> None:
    old = {"datasets": [{"name": "a", "lastRunTime": "2026-01-01T00:00:00Z"}, {"name": "b", "decision": "Due"}]}

    new = with_entry(old, name="a", decision="Later")

    assert new["datasets"] == [
        {"name": "b", "decision": "Due"},
        {"name": "a", "lastRunTime": "2026-01-01T00:00:00Z", "decision": "Later"},
    ]
    assert new["lastRunTime"] == "2026-01-01T00:00:00Z"


def test_of_many_datasets_those_are_shown_that_wait_for_somebody() -> None:
    """The Datasets that need approval come first."""
    status: dict[str, Any] = {}
    for n in range(25):
        decision = {22: "Due", 23: "NeedsApproval", 24: "Running"}.get(n, "Later")
        status = with_entry(status, name=f"d{n:02}", decision=decision)

    assert [e["name"] for e in status["datasets"]] == ["d23", "d22", "d24", *(f"d{n:02}" for n in range(17))]


def test_datasets_that_are_no_longer_selected_leave_its_status() -> None:
    old = {"datasets": [{"name": "a"}, {"name": "b"}], "datasetsCount": 2}

    new = document(vacuum_status.without_others(a_policy_status(**old), {"b"}))

    assert (new["datasets"], new["datasetsCount"]) == ([{"name": "b"}], 1)


@pytest.mark.parametrize("between", [(), (a_policy(approval="Manual"),)], ids=["none selects it", "approval"])
def test_a_failed_vacuum_that_was_not_wanted_for_a_while_goes_on(between: tuple[VacuumPolicy, ...]) -> None:
    """It has failed for a temporary reason, so nothing says that there is nothing left."""
    policies = (a_policy(),)
    story = VacuumStory(policies)
    story.start()
    story.fail()
    story.policies = between
    given_up = story.decide().abandoned
    if between:
        story.end("Planned", plan=a_plan())
    story.runs = [replace(r, intent=None) if r.run_id in given_up else r for r in story.runs]
    story.wait(hours=1)
    story.decide()
    story.policies = policies

    story.start()

    assert (story.launched[-1].run_id, story.launched[-1].attempt) == (story.launched[0].run_id, 2)


def test_a_failed_plan_that_was_not_wanted_for_a_while_is_made() -> None:
    manual = (a_policy(approval="Manual"),)
    story = VacuumStory(manual)
    assert story.start().plan_only
    story.fail()
    story.policies = ()
    assert story.decide().abandoned
    story.runs = [replace(r, intent=None) for r in story.runs]
    story.policies = manual
    story.wait(hours=1)

    assert story.start().plan_only
    assert story.launched[-1].attempt == 2
