"""Each command that a command suggests as the next one is run in the state in which it is suggested."""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lethe.base.errors import Verdict
from lethe.cli.main import cli
from lethe.kube import DATASETS, NAMESPACES, RESTATEMENTS, VACUUM_POLICIES, RequestRefused, ResourceKind
from lethe.ledger.ledger import BatchState
from lethe_kubectl.errors import ResourcePlace, explained
from lethe_kubectl.target import Choice, connected
from lethe_kubectl.why import UserStep, command, step_of, subject_of
from lethe_local.folder import NAMESPACE
from lethe_operator.reasons import Reason

from tests.services.kubectl.conftest import LocalApi
from tests.support import api_server
from tests.support.builders import a_batch
from tests.support.documents import resource
from tests.support.servers.kubernetes import tool
from tests.support.tables import commit_delta
from tests.tables.lethe.cli.conftest import Kept

LONG_AGO = "2026-01-01T00:00:00Z"
RUN = "flights-vacuum-0123456789abcdef-1"
MESSAGE = "To accept it: kubectl annotate datasets.lethe.dev flights --overwrite lethe.dev/accept-head=none/u-1 (all are lost)"
FAILED = {
    "name": RUN,
    "kind": "Vacuum",
    "phase": "Failed",
    "finishTime": LONG_AGO,
    "message": "no memory",
}
STATUS = {
    "runs": [FAILED],
    "vacuum": {"decision": "NeedsApproval", "plan": {"digest": "abc"}, "message": "3 tombstones."},
}
PLACE = ResourcePlace("context tests", "https://127.0.0.1:1", "default", "kubectl", "lethe {}")
REASON_OF = {step_of(reason): reason for reason in Reason}
KINDS: dict[str, tuple[ResourceKind, str]] = {
    "dataset": (DATASETS, "flights"),
    "restatement": (RESTATEMENTS, "undo-fix"),
    "vacuumpolicy": (VACUUM_POLICIES, "nightly"),
}


@dataclass(frozen=True)
class Done:
    """A command that was run."""

    code: int
    text: str


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalApi]:
    """A folder whose name has a space, with a resource of each kind, and a run that failed long ago."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("KUBE_EDITOR", "true")
    with api_server.running(tmp_path / "my lake") as server:
        local = LocalApi(server.folder, server.kube)
        local.kube.create(NAMESPACES, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        identities = [{"name": "customer", "column": "email"}]
        local.dataset("flights", STATUS, consolidation={"suspend": True}, identities=identities)
        local.kube.patch(DATASETS, NAMESPACE, "flights", {"metadata": {"annotations": {"lethe.dev/paused": ""}}})
        ref = {"datasetRef": {"name": "flights"}}
        for name, spec in (
            ("fix", {**ref, "operation": "Revert", "batchIds": ["A"]}),
            ("undo-fix", {**ref, "operation": "Undo", "undoes": {"name": "fix"}, "suspend": True}),
        ):
            local.kube.create(RESTATEMENTS, NAMESPACE, resource("Restatement", name, spec))
        policy = {"datasetSelector": {}, "triggers": {"activeTombstones": 9}}
        local.kube.create(VACUUM_POLICIES, NAMESPACE, resource("VacuumPolicy", "nightly", policy))
        log = server.folder.parts / RUN / "log"
        log.parent.mkdir(parents=True)
        log.write_text("no memory\n")
        yield local


def run(command: str) -> Done:
    """A command, as a person pastes it into a shell."""
    words = shlex.split(command)
    if words[0] == "lethe":
        done = CliRunner().invoke(cli, words[1:], input="y\n")
        return Done(done.exit_code, done.output)
    assert words[0] == "kubectl"
    ended = subprocess.run([tool("kubectl"), *words[1:]], capture_output=True, text=True, timeout=60, check=False)
    return Done(ended.returncode, ended.stdout + ended.stderr)


def condition(local: LocalApi, kind: str, reason: Reason, type: str = "Ready") -> None:
    of, name = KINDS[kind]
    generation = local.kube.get(of, NAMESPACE, name)["metadata"]["generation"]
    ready = {
        "type": type,
        "status": "False",
        "reason": reason.value,
        "message": MESSAGE,
        "lastTransitionTime": LONG_AGO,
    }
    status = {"observedGeneration": generation, "conditions": [ready]}
    local.kube.patch(of, NAMESPACE, name, {"status": status}, "status")


def next_of(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("next: ")]
    return line.removeprefix("next: ")


@pytest.mark.parametrize("step", [s for s in REASON_OF if s is not UserStep.NOTHING])
def test_the_next_command_of_why_can_be_run(lake: LocalApi, step: UserStep) -> None:
    """For each kind of resource. Where several kinds suggest the same command, it is run once."""
    for kind in KINDS:
        condition(lake, kind, REASON_OF[step])
    suggested = {next_of(lake.lethe("why", f"{kind}/{name}").output) for kind, (_, name) in KINDS.items()}

    done = {command: run(command) for command in suggested}

    assert {command: d.text for command, d in done.items() if d.code != 0 or "Warning" in d.text} == {}


@pytest.mark.parametrize("state", [BatchState.REFUSED, BatchState.HELD])
def test_the_next_command_of_why_lists_the_batches_that_wait_for_a_person(
    local: LocalApi, kept: Kept, state: BatchState
) -> None:
    commit_delta(kept.table, set_batches=(a_batch("A", state, rows=None, refusal=Verdict("CheckFailed", "2 rows")),))
    entry = {"batchId": "A", "reason": "CheckFailed", "message": "2 rows"}
    ready = {"type": "Ready", "status": "True", "reason": "Available", "message": "", "lastTransitionTime": LONG_AGO}
    status = {"observedGeneration": 1, "conditions": [ready], "batches": {state: 1, f"{state}Batches": [entry]}}
    local.dataset("flights", status)

    said = local.lethe("why", "dataset/flights").output
    done = run(next_of(said))

    assert "such as A: CheckFailed 2 rows" in " ".join(said.split())
    assert (done.code, "CheckFailed" in done.text) == (0, True), done.text


EFFECTS: dict[str, tuple[str, UserStep, Callable[[LocalApi], Any], Any]] = {
    "a pause ends": ("dataset", UserStep.UNPAUSE, lambda at: annotations(at).get("lethe.dev/paused"), None),
    "the suspension of a Dataset ends": (
        "dataset",
        UserStep.RESUME,
        lambda at: at.kube.get(DATASETS, NAMESPACE, "flights")["spec"]["consolidation"]["suspend"],
        False,
    ),
    "the suspension of a Restatement ends": (
        "restatement",
        UserStep.RESUME,
        lambda at: at.kube.get(RESTATEMENTS, NAMESPACE, "undo-fix")["spec"]["suspend"],
        False,
    ),
    "the head is accepted": (
        "dataset",
        UserStep.ACCEPT_HEAD,
        lambda at: annotations(at)["lethe.dev/accept-head"],
        "none/u-1",
    ),
    "the plan is approved": ("dataset", UserStep.APPROVE, lambda at: annotations(at)["lethe.dev/approve"], "abc"),
    "a vacuum is requested": (
        "dataset",
        UserStep.VACUUM,
        lambda at: bool(annotations(at)["lethe.dev/vacuum-now"]),
        True,
    ),
}


def annotations(local: LocalApi) -> dict[str, str]:
    return dict(local.kube.get(DATASETS, NAMESPACE, "flights")["metadata"].get("annotations") or {})


@pytest.mark.parametrize(("kind", "step", "seen", "expected"), EFFECTS.values(), ids=EFFECTS)
def test_the_next_command_does_what_the_resource_waits_for(
    lake: LocalApi, kind: str, step: UserStep, seen: Callable[[LocalApi], Any], expected: Any
) -> None:
    condition(lake, kind, REASON_OF[step])

    run(next_of(lake.lethe("why", f"{kind}/{KINDS[kind][1]}").output))

    assert seen(lake) == expected


def test_what_a_restatement_waits_for_is_mended_in_its_dataset(lake: LocalApi) -> None:
    """The annotation lethe.dev/paused of a Restatement means nothing, and the spec of one cannot be edited."""
    for reason, verb in (
        (Reason.PAUSED, "annotate dataset.lethe.dev flights"),
        (Reason.TABLE_NOT_FOUND, "edit dataset.lethe.dev flights"),
    ):
        condition(lake, "dataset", reason)
        condition(lake, "restatement", reason)
        assert verb in next_of(lake.lethe("why", "restatement/undo-fix").output)


def test_a_restatement_that_can_never_succeed_is_shown_to_make_a_new_one(lake: LocalApi) -> None:
    condition(lake, "restatement", Reason.INVALID_SPEC)

    assert "get restatement.lethe.dev undo-fix -o yaml" in next_of(lake.lethe("why", "restatement/undo-fix").output)


VERBS = {
    "revert": ("revert", "flights", "A"),
    "revert, waited for": ("revert", "flights", "B", "--wait", "--timeout", "0"),
    "erase, waited for": ("erase", "flights", "C", "--wait=hidden", "--timeout", "0"),
    "erase a subject": ("erase", "--everywhere", "--subject", "customer=ana"),
    "undo": ("undo", "fix"),
    "replay": ("replay", "flights", "A", "--with", "A2", "--uri", "file:///nowhere"),
    "vacuum-now, waited for": ("vacuum-now", "flights", "--wait", "--timeout", "0"),
    "approve, waited for": ("approve", "flights", "--plan", "abc", "--wait", "--timeout", "0"),
}


@pytest.mark.parametrize("arguments", VERBS.values(), ids=VERBS)
def test_the_next_command_of_a_verb_can_be_run(lake: LocalApi, arguments: tuple[str, ...]) -> None:
    suggested = next_of(lake.lethe(*arguments).output)

    assert run(suggested).code == 0, suggested


@pytest.mark.parametrize("restatement", [True, False])
def test_the_next_command_of_status_shows_what_failed(lake: LocalApi, restatement: bool) -> None:
    if restatement:
        lake.kube.patch(RESTATEMENTS, NAMESPACE, "fix", {"status": {"phase": "Failed"}}, "status")
    else:
        runs = [{k: v for k, v in FAILED.items() if k != "finishTime"}]
        lake.kube.patch(DATASETS, NAMESPACE, "flights", {"status": {"runs": runs}}, "status")

    suggested = next_of(lake.lethe("status").output)

    assert suggested.startswith("lethe why restatement/fix " if restatement else f"lethe logs {RUN} ")
    assert run(suggested).code == 0


def test_errors_of_commands_on_tables_name_commands_that_can_be_run(lake: LocalApi) -> None:
    """They lead to the same resources."""
    values = {"identity": "customer", "valuesFrom": {"secretKeyRef": {"name": "erase-s", "key": "values"}}}
    subject = {"operation": "Erase", "datasetSelector": {}, "subject": values}
    lake.kube.create(RESTATEMENTS, NAMESPACE, resource("Restatement", "dsr", subject))
    lake.dataset("young")

    no_table = lake.lethe("batches", "young").output.partition("creates it: `")[2].partition("`")[0]
    no_record = lake.lethe("erasures", "verify", "restatement/dsr").output.partition("This says why: ")[2].strip()
    of_dataset = lake.lethe("erasures", "verify", "restatement/fix").output.partition("Run: ")[2].strip()

    assert [run(command).code for command in (no_table, no_record)] == [0, 0], (no_table, no_record)
    assert "TableNotFound" in run(of_dataset).text, of_dataset


def test_an_error_names_a_command_that_can_be_run(lake: LocalApi) -> None:
    lake.kube.patch(DATASETS, NAMESPACE, "flights", {"status": {"vacuum": {"decision": "Later"}}}, "status")

    nothing = lake.lethe("approve", "flights").output

    assert run(nothing.partition("See: ")[2].strip()).code == 0, nothing


@pytest.mark.parametrize(
    "resource",
    ['"datasets" in API group "lethe.dev"', '"datasets/status" in API group "lethe.dev"', '"pods/log" in API group ""'],
)
def test_the_right_that_is_missing_can_be_given(lake: LocalApi, resource: str) -> None:
    said = f'User "ana" cannot get resource {resource} in the namespace "default"'
    with connected(Choice(lake.folder.path)) as at:
        message = explained(_forbidden(said), at.place).message

    role = re.search(r"kubectl create role .*?(?=, and)", message)
    assert role is not None
    done = run(f"{role[0]} --dry-run=client --kubeconfig '{lake.folder.kubeconfig}'")

    assert (done.code, done.text.strip().endswith("created (dry run)")) == (0, True), done.text
    check = shlex.split(message.partition("This checks it: ")[2])
    assert "/" not in check[check.index("can-i") + 2]  # kubectl reads TYPE/NAME


def _forbidden(said: str) -> Any:
    return RequestRefused(403, "Forbidden", f"GET /x: {said}")


def test_a_step_that_lacks_what_it_needs_shows_the_events() -> None:
    subject = subject_of("vacuumpolicy", {"metadata": {"name": "nightly"}})
    with_nothing = [UserStep.LOGS, UserStep.ACCEPT_HEAD, UserStep.UNDONE, UserStep.RESUME, UserStep.VACUUM]

    for step in with_nothing:
        assert command(step, subject, PLACE) == "kubectl describe vacuumpolicy.lethe.dev nightly"
