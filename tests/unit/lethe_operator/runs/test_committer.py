"""What changes metadata alone is asked of the committer of the namespace, and of a Job when there is none or it cannot."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.run import MailboxEntry, RunSpec
from lethe.contract.settings import Deletes
from lethe.kube import CONFIG_MAPS, JOBS, LEASES, ROLE_BINDINGS, ROLES, RequestRefused
from lethe_operator.actions import Actions, Launch
from lethe_operator.dataset.observe import committer_view
from lethe_operator.resources.observed import Attempt, AttemptState, Engine, ObservedRun, WorkerView
from lethe_operator.runs import names
from lethe_operator.runs.launch import launch, remind, withdraw
from lethe_operator.runs.observe import Documents, runs_of
from lethe_operator.settings import CommitterSettings

from tests.support.builders import NOW, a_batch, a_ledger, a_request_entry, ago
from tests.support.fake_cluster import FakeCluster, watched
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_group,
    a_replay,
    a_restatement,
    a_result,
    a_run,
    a_table,
    a_world,
    an_attempt,
    condition,
)
from tests.support.statuses import decide
from tests.unit.lethe_operator.queueing import R, members

MAILBOX = {"app.kubernetes.io/name": "lethe"}  # the chart's label, by which the operator watches it
ALIVE = WorkerView(alive=True)
AWAY = WorkerView(alive=False)
WITH_ONE = replace(SETTINGS, committer=CommitterSettings(enabled=True))


def decided(*restatements: Any, runs: tuple[ObservedRun, ...] = (), **world: Any) -> Actions:
    found = a_world(restatements=restatements, runs=runs, **{"committer": ALIVE, **world})
    return decide(a_dataset(), found, NOW, SETTINGS)


def asked(spec: RunSpec, state: AttemptState = AttemptState.ACTIVE, **changes: Any) -> ObservedRun:
    return a_run(spec, an_attempt(spec, state, engine=Engine.COMMITTER, **changes))


def engines(actions: Actions) -> list[Engine]:
    return [x.engine for x in actions.launches]


# --- who carries it out ----------------------------------------------------------------------------------------------


def test_reverts_and_undos_go_to_the_committer_and_replays_to_a_job() -> None:
    undo = a_restatement("undo", operation="Undo", batchIds=[], undoes={"name": "r7"})
    ledger = a_ledger(requests=[a_request_entry(R[7].key)])

    actions = decided(*R[:2], undo, R[7], a_replay("X", "Y", "replay"), table=a_table(ledger))

    found = {x.engine: x.run.restatement.requests for x in actions.launches if x.run.restatement}
    assert {engine: [r.name for r in requests] for engine, requests in found.items()} == {
        Engine.COMMITTER: ["ns/r0", "ns/r1", "ns/undo"],
        Engine.JOB: ["ns/replay"],
    }


@pytest.mark.parametrize(
    "world",
    [
        {"committer": None},
        {"committer": AWAY},
        {"table": a_table(claim=None)},
        {"table": a_table(prepared=False)},
    ],
    ids=["no committer", "away", "a table that nobody has claimed", "a table that is not prepared"],
)
def test_else_all_of_them_go_to_a_job(world: dict[str, Any]) -> None:
    """Claiming and preparing a table is a run's."""
    actions = decided(*R[:2], a_replay("X", "Y", "replay"), **world)

    assert (engines(actions), len(members(actions))) == ([Engine.JOB], 3)


@pytest.mark.parametrize("mode", Deletes)
def test_the_committer_is_asked_first_whichever_deletes_are_written(mode: Deletes) -> None:
    dataset = a_dataset(deletes=mode)
    table = a_table(format_version=3 if mode is Deletes.DELETION_VECTORS else 2)

    actions = decide(dataset, a_world(restatements=R[:2], table=table, committer=ALIVE), NOW, SETTINGS)

    assert (engines(actions), len(members(actions))) == ([Engine.COMMITTER], 2)


def test_after_a_change_of_the_mode_a_restatement_waits_for_what_the_committer_is_at() -> None:
    """The mode of a live Dataset may be changed at any time; the order of Restatements of one batch holds."""
    dataset = a_dataset(deletes="PositionDeletes")
    again = a_restatement("again", batchIds=list(R[0].batch_ids), meta={"creationTimestamp": NOW.isoformat()})
    world = a_world(restatements=(R[0], again), runs=(asked(a_group(R[0])),), committer=ALIVE)

    actions = decide(dataset, world, NOW, SETTINGS)

    assert actions.launches == ()
    assert condition(actions.restatement_statuses["again"], "Ready")[1] == "WaitingForRestatement"


def test_the_committer_goes_on_beside_a_run_that_writes_data() -> None:
    """A consolidation may take minutes; the one that commits second plans anew."""
    busy = a_consolidation(a_buffered("Z"))

    actions = decided(R[0], a_replay("X", "Y", "replay"), runs=(a_run(busy, an_attempt(busy)),))

    assert (engines(actions), members(actions)) == ([Engine.COMMITTER], ["r0"])


def test_a_consolidation_starts_beside_the_committer() -> None:
    world = a_world(
        a_buffered("Z", age_seconds=10_000), restatements=R[:1], runs=(asked(a_group(R[0])),), committer=ALIVE
    )

    actions = decide(a_dataset(), world, NOW, SETTINGS)

    assert [x.run.family for x in actions.launches] == ["Consolidation"]


def test_it_is_asked_for_one_thing_at_a_time() -> None:
    actions = decided(R[0], R[1], runs=(asked(a_group(R[0])),))

    assert actions.launches == ()
    assert condition(actions.restatement_statuses["r0"], "Ready")[1] == "Running"


@pytest.mark.parametrize(("seconds", "starts"), [(4, False), (5, True)])
def test_it_does_not_follow_its_own_commit_at_once_and_no_run_does(seconds: int, starts: bool) -> None:
    before = a_restatement("before")
    table = a_table(a_ledger(requests=[a_request_entry(before.key)]))
    runs = (asked(a_group(before), AttemptState.SUCCEEDED, finished_seconds=seconds),)

    assert engines(decided(R[0], runs=runs, table=table)) == ([Engine.COMMITTER] if starts else [])
    replay = decided(a_replay("X", "Y", "replay"), runs=runs, table=table)
    assert engines(replay) == ([Engine.JOB] if starts else [])
    assert starts or replay.look_again == ago(seconds=-1)


def test_it_follows_the_commit_of_a_run_at_once() -> None:
    """Its one commit takes a moment, so other writers lose one attempt more and not their turn."""
    done = a_consolidation(a_buffered("Z"))
    runs = (a_run(done, an_attempt(done, AttemptState.SUCCEEDED, finished_seconds=1), intent=False),)

    actions = decided(R[0], runs=runs, table=a_table(a_ledger(batches=[a_batch("Z")])))

    assert engines(actions) == [Engine.COMMITTER]


# --- the order between the two ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["waits", "runs"])
def test_a_revert_waits_for_a_replay_of_the_same_batch_that_came_before(first: str) -> None:
    replay = a_replay("A", "B", "replay", meta={"creationTimestamp": ago(hours=2).isoformat()})
    revert, other = a_restatement("revert", batchIds=["A"]), a_restatement("other", batchIds=["C"])
    spec = a_group(replay)
    runs = (a_run(spec, an_attempt(spec)),) if first == "runs" else ()

    actions = decided(replay, revert, other, runs=runs)

    assert sorted(members(actions)) == (["other", "replay"] if first == "waits" else ["other"])
    assert condition(actions.restatement_statuses["revert"], "Ready")[1] == "WaitingForRestatement"


def test_a_replay_waits_for_a_revert_of_the_same_batch_that_came_before_and_goes_once_it_is_done() -> None:
    revert = a_restatement("revert", batchIds=["A"], meta={"creationTimestamp": ago(hours=2).isoformat()})
    replay = a_replay("A", "B", "replay")

    assert members(decided(revert, replay)) == ["revert"]
    assert members(decided(replay)) == ["replay"]


# --- when it does not do it ------------------------------------------------------------------------------------------


def test_what_it_could_not_do_is_tried_by_a_job_at_once() -> None:
    """It has no Spark: a file that only Spark reads, say."""
    spec = a_group(R[0])
    said = a_result(spec, "Failed", reason="NeedsSpark", message="This needs Spark.")
    failed = asked(spec, AttemptState.FAILED, exit_code=20, result=said, finished_seconds=10, for_uid=R[0].meta.uid)

    (launch,) = decided(R[0], runs=(failed,)).launches

    assert (launch.engine, launch.run.run_id, launch.run.attempt) == (Engine.JOB, spec.run_id, 2)


def test_what_a_crash_kept_out_of_the_mailbox_is_put_there_again() -> None:
    run = asked(a_group(R[0]))
    key = names.key_prefix(run.run_id)

    assert [a.run_id for a in decided(R[0], runs=(run,)).remind] == [run.run_id]
    assert decided(R[0], runs=(run,), committer=WorkerView(True, frozenset({key}))).remind == ()


def test_one_that_is_away_is_asked_no_more_before_a_job_starts() -> None:
    """It would otherwise do, when it comes back, what a user has been told is cancelled."""
    run = asked(a_group(R[0]))
    key = names.key_prefix(run.run_id)

    actions = decided(R[0], runs=(run,), committer=WorkerView(False, frozenset({key, "of-others"})))

    assert ([a.run_id[:12] for a in actions.withdraw], actions.launches) == ([key], ())


def test_a_cancelled_one_is_told_its_outcome_when_the_committer_has_ended() -> None:
    cancelled = a_restatement("r0", batchIds=["b0"], cancel=True)

    actions = decided(cancelled, runs=(asked(a_group(cancelled)),))

    assert condition(actions.restatement_statuses["r0"], "Ready")[1] == "Cancelling"
    assert actions.delete_jobs == ()


# --- what it says ----------------------------------------------------------------------------------------------------


def started(server: FakeCluster, spec: RunSpec) -> None:
    server.create(CONFIG_MAPS, "ns", {"metadata": {"namespace": "ns", "name": "lethe-committer"}})
    wanted = Launch(spec, 0, 3, "a test", "uid-r0", Engine.COMMITTER)
    launch(server, a_dataset(), wanted, a_table(), NOW, WITH_ONE)  # type: ignore[arg-type]


def attempts(server: FakeCluster, view: WorkerView | None) -> list[Attempt]:
    data = server.get(CONFIG_MAPS, "ns", "flights-runs")["data"]
    inline = Documents(lambda _: pytest.fail("nothing lies beside the table"))
    return [a for r in runs_of((), (), data, inline, {Engine.COMMITTER: view} if view else None) for a in r.attempts]


def test_what_was_asked_for_is_under_way_until_its_result_is_there() -> None:
    server, spec = FakeCluster(), a_group(R[0])
    started(server, spec)

    (attempt,) = attempts(server, ALIVE)
    assert (attempt.state, attempt.engine, attempt.created) == (AttemptState.ACTIVE, Engine.COMMITTER, NOW)
    assert (attempt.generation, attempt.for_uid, attempt.number) == (3, "uid-r0", 1)
    done = {f"{names.key_prefix(spec.run_id)}.result.json": a_result(spec).to_json()}
    server.patch(CONFIG_MAPS, "ns", "flights-runs", {"data": done})
    (ended,) = attempts(server, AWAY)

    assert (ended.state, ended.exit_code, ended.finished) == (AttemptState.SUCCEEDED, 0, ago(seconds=30))


def test_it_has_failed_once_nobody_is_there_and_nothing_lies_in_the_mailbox() -> None:
    server, spec = FakeCluster(), a_group(R[0])
    started(server, spec)
    key = names.key_prefix(spec.run_id)

    (waits,), (lost,) = attempts(server, WorkerView(False, frozenset({key}))), attempts(server, AWAY)

    assert (waits.state, lost.state) == (AttemptState.ACTIVE, AttemptState.FAILED)


@pytest.mark.parametrize("view", [ALIVE, AWAY], ids=["alive", "away"])
def test_it_has_failed_also_while_the_job_that_takes_over_cannot_be_created(view: WorkerView) -> None:
    """The document of the next attempt is stored first, and what the last one reported is removed with it."""

    class WithoutJobs(FakeCluster):
        def create(self, kind: Any, namespace: str, document: Any) -> Any:
            if kind is JOBS:
                raise RequestRefused(403, "Forbidden", "exceeded quota")
            return super().create(kind, namespace, document)

    server, spec = WithoutJobs(), a_group(R[0])
    started(server, spec)
    said = a_result(spec, "Failed", reason="NeedsSpark", message="This needs Spark.")
    done = {f"{names.key_prefix(spec.run_id)}.result.json": said.to_json()}
    server.patch(CONFIG_MAPS, "ns", "flights-runs", {"data": done})
    server.patch(CONFIG_MAPS, "ns", "lethe-committer", {"data": {names.key_prefix(spec.run_id): None}})
    second = spec.model_copy(update={"attempt": 2})

    with pytest.raises(RequestRefused):
        launch(server, a_dataset(), Launch(second, 0, 3, "a test", "uid-r0"), a_table(), NOW, WITH_ONE)  # type: ignore[arg-type]
    (attempt,) = attempts(server, view)

    assert (attempt.number, attempt.state) == (1, AttemptState.FAILED)


def test_the_mailbox_says_where_the_run_is_and_is_put_right_as_often_as_one_likes() -> None:
    server, spec = FakeCluster(), a_group(R[0])
    started(server, spec)
    mailbox = server.get(CONFIG_MAPS, "ns", "lethe-committer")["data"]

    (entry,) = [MailboxEntry.model_validate_json(text) for text in mailbox.values()]
    assert (entry.config_map, entry.run_id, entry.created_time) == ("flights-runs", spec.run_id, NOW)
    assert mailbox.keys() == {entry.prefix}
    withdraw(server, "ns", attempts(server, ALIVE), WITH_ONE)  # type: ignore[arg-type]
    assert server.get(CONFIG_MAPS, "ns", "lethe-committer").get("data") == {}
    remind(server, spec.dataset, attempts(server, ALIVE), WITH_ONE)  # type: ignore[arg-type]

    assert server.get(CONFIG_MAPS, "ns", "lethe-committer")["data"] == mailbox


def test_it_may_report_into_the_datasets_config_map_and_do_nothing_else_there() -> None:
    """A Dataset's own account may start pods."""
    server = FakeCluster()
    started(server, a_group(R[0]))

    bound = {b["metadata"]["name"]: b["subjects"] for b in server.list(ROLE_BINDINGS, "ns")}
    mine = [role for role, subjects in bound.items() if "lethe-committer" in {s["name"] for s in subjects}]
    assert mine == ["flights-reports"]
    (rule,) = server.get(ROLES, "ns", "flights-reports")["rules"]
    assert rule == {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["flights-runs"],
        "verbs": ["get", "patch"],
    }


# --- whether it is there ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lease", "alive"),
    [
        ({"holderIdentity": "pod", "renewTime": ago(seconds=29).isoformat(), "leaseDurationSeconds": 30}, True),
        ({"holderIdentity": "pod", "renewTime": ago(seconds=30).isoformat(), "leaseDurationSeconds": 30}, False),
        ({"holderIdentity": "pod", "renewTime": ago(seconds=-29).isoformat(), "leaseDurationSeconds": 30}, True),
        ({"holderIdentity": "pod", "renewTime": ago(hours=-1).isoformat(), "leaseDurationSeconds": 30}, False),
        ({"renewTime": ago(seconds=1).isoformat(), "leaseDurationSeconds": 30}, False),
        ({}, False),
    ],
    ids=["renewed", "not any more", "ahead", "wrong clock", "let go", "never held"],
)
def test_a_committer_is_there_while_it_renews_its_lease(lease: dict[str, Any], alive: bool) -> None:
    server = FakeCluster(
        (LEASES, {"metadata": {"namespace": "ns", "name": "lethe-committer"}, "spec": lease}),
        (
            CONFIG_MAPS,
            {"metadata": {"namespace": "ns", "name": "lethe-committer", "labels": MAILBOX}, "data": {"k": "v"}},
        ),
    )

    objects = watched(server)

    found = committer_view(objects, "ns", "lethe-committer", NOW)

    assert found == WorkerView(alive, frozenset({"k"}))
    assert committer_view(objects, "elsewhere", "lethe-committer", NOW + timedelta(days=1)) == AWAY
