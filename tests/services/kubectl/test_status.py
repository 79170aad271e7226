"""`lethe status` shows what failed in the last day, and its exit code says so."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lethe.kube import RESTATEMENTS
from lethe_kubectl.status import failures, need_attention

from tests.services.kubectl.conftest import LocalApi
from tests.support.documents import resource

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def a_restatement(name: str, phase: str, ended: datetime) -> dict[str, Any]:
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "RunFailed",
        "message": "no memory",
        "lastTransitionTime": f"{ended:%Y-%m-%dT%H:%M:%SZ}",
    }
    spec = {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchIds": ["A"]}
    return {**resource("Restatement", name, spec), "status": {"phase": phase, "conditions": [ready]}}


def a_run(name: str, phase: str, ended: datetime | None) -> dict[str, Any]:
    time = {"finishTime": f"{ended:%Y-%m-%dT%H:%M:%SZ}"} if ended is not None else {}
    return {"name": name, "kind": "Vacuum", "phase": phase, **time}


@pytest.mark.parametrize(("age", "counts"), [(DAY, True), (DAY + timedelta(seconds=1), False)])
def test_what_failed_counts_for_a_day(age: timedelta, counts: bool) -> None:
    dataset = {"metadata": {"name": "flights"}, "status": {"runs": [a_run("v-1", "Failed", NOW - age)]}}
    found = [("dataset", dataset), ("restatement", a_restatement("revert-a", "Failed", NOW - age))]

    failed = failures(found, NOW)

    assert (bool(failed), list(failed.restatements), list(failed.runs)) == (
        (True, ["revert-a"], ["v-1"]) if counts else (False, [], [])
    )


def test_what_did_not_fail_does_not_count() -> None:
    runs = [a_run("v-1", "Succeeded", NOW), a_run("v-2", "Writing", None)]
    dataset = {"metadata": {"name": "flights"}, "status": {"runs": runs}}
    found = [("dataset", dataset), ("restatement", a_restatement("revert-a", "Cancelled", NOW))]

    assert not failures(found, NOW)


def test_a_failure_that_was_repeated_with_success_is_neither_counted_nor_shown() -> None:
    failed, again = a_restatement("revert-a", "Failed", NOW), a_restatement("revert-a-2", "Succeeded", NOW)
    found = [("restatement", failed), ("restatement", again)]

    assert not failures(found, NOW)
    assert need_attention(found, NOW) == []
    assert need_attention(found[:1], NOW) == found[:1]


def test_failures_are_shown_counted_and_in_the_exit_code(local: LocalApi) -> None:
    now = datetime.now(UTC)
    local.dataset("flights", {"runs": [a_run("v-1", "Failed", now), a_run("v-0", "Failed", now)]})
    for name, ended in (("revert-a", now), ("revert-old", now - 2 * DAY)):
        made = a_restatement(name, "Failed", ended)
        local.kube.create(RESTATEMENTS, "default", {k: v for k, v in made.items() if k != "status"})
        local.kube.patch(RESTATEMENTS, "default", name, {"status": made["status"]}, "status")

    shown, names = local.lethe("status"), local.lethe("status", "-o", "name")

    assert (shown.exit_code, names.exit_code) == (1, 1)
    assert shown.stdout.splitlines()[-2:] == [
        "failed in the last day: 1 Restatement (revert-a), 2 runs (v-1, v-0)",
        f"next: lethe why restatement/revert-a --dir {local.folder.path}",
    ]
    assert names.stdout.split() == ["dataset/flights", "restatement/revert-a"]


def test_without_failures_the_exit_code_is_0(local: LocalApi) -> None:
    local.dataset("flights", {"runs": [a_run("v-1", "Succeeded", datetime.now(UTC))]})

    shown = local.lethe("status")

    assert (shown.exit_code, "failed" in shown.stdout) == (0, False)
