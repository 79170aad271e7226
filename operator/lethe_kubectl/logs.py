"""`lethe logs`, and waiting for a Restatement or a vacuum while its progress is shown. I/O.

Each attempt of a run is an object with a name of its own, and a pod. The log is that of the driver's pod, or a file in the
folder of `lethe local`.
"""

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click
from lethe.base.errors import InputError
from lethe.cli.output import working
from lethe.contract.status import DatasetStatus, RestatementStatus, VacuumStatus, parse_status
from lethe.kube import DATASETS, PODS, RESTATEMENTS, KubeError, NotFound
from lethe_local.folder import LAST_LINES, log_lines, log_of, warm_lines
from lethe_operator.cluster import run_pods
from lethe_operator.cluster.run_pods import POD_LABELS, container_of, launched_by, newest, pod_of
from lethe_operator.resources.common import LABEL_ATTEMPT, LABEL_RUN_ID
from lethe_operator.resources.manifests import without_defaults

from lethe_kubectl import lookup
from lethe_kubectl.lookup import target_options, unknown
from lethe_kubectl.status import (
    RunOfDataset,
    WaitGoal,
    dataset_status,
    restatement_ended,
    runs_of,
    vacuum_ended,
    waits_for,
)
from lethe_kubectl.target import Choice, Connection, connected

Document = Mapping[str, Any]
LOOK_SECONDS: Final = 0.5
SHOWN_OF_A_FAILURE: Final = 10


@click.command()
@click.argument("run", shell_complete=lookup.runs)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended, or until Ctrl-C.")
@click.option("-p", "--previous", is_flag=True, help="The attempt before this one.")
@click.option("--tail", default=LAST_LINES, show_default=True, help="The number of last lines; 0: all.")
@target_options
def logs(choice: Choice, run: str, follow: bool, previous: bool, tail: int) -> None:
    """Show the log of a RUN, by the name that `lethe runs` shows, or of the newest run of a Dataset."""
    with connected(choice) as at:
        name = _run_of(at, run)
        if previous:
            name = _before(at, name)
        for line in lines_of(at, name, tail, follow):
            click.echo(line)


def last_lines(at: Connection, dataset: str) -> Sequence[str]:
    """The last lines of the newest run of a Dataset that failed, below a line with its name. Empty, if they cannot be read."""
    try:
        runs = runs_of([at.kube.get(DATASETS, at.namespace, dataset)])
        run = next((r.name for r in runs if r.phase == "Failed"), "")
        lines = list(lines_of(at, run, SHOWN_OF_A_FAILURE)) if run else []
    except (KubeError, InputError, OSError):
        return ()
    return [f"the last lines of run {run}:", *(f"  {line}" for line in lines)] if lines else ()


def lines_of(at: Connection, run: str, last: int, follow: bool = False) -> Iterator[str]:
    """The last lines of a run's log, and with `follow` each new one until the run has ended.

    Args:
        last: How many; 0: all.

    Raises:
        InputError: `NoLog`, `UnknownName`.
    """
    file = log_of(at.local, run) if at.local is not None else None
    if file is not None:
        yield from log_lines(file, last, follow)
        return
    pod = pod_of(at.kube, at.namespace, run)
    if pod is None or at.local is not None:
        yield from _warm_lines(at, run, last, follow)
        return
    name = str(pod["metadata"]["name"])
    while follow and (pod.get("status") or {}).get("phase") == "Pending":
        time.sleep(LOOK_SECONDS)
        pod = at.kube.get(PODS, at.namespace, name)
    try:
        yield from at.kube.log(at.namespace, name, container_of(pod), last, follow)
    except NotFound:
        raise _no_log(at, run) from None


def _warm_lines(at: Connection, run: str, last: int, follow: bool) -> Iterator[str]:
    """The same for a run without a pod of its own, from the log of the warm driver.

    Raises:
        InputError: The user has to change something.
    """
    shown = 0
    while True:
        known = _known(at, run)
        lines = _newest_warm_lines(at, run)
        if not lines and not shown:
            raise _no_log(at, run)
        yield from lines[shown or (-last if last else 0) :]
        shown = len(lines)
        if not follow or known is None or known.finish_time is not None:
            return
        time.sleep(LOOK_SECONDS)


def _newest_warm_lines(at: Connection, run: str) -> list[str]:
    """From the newest warm driver that has carried out the run."""
    if at.local is not None:
        return warm_lines(at.local, run)
    return run_pods.warm_lines(at.kube, at.namespace, run)


def _run_of(at: Connection, name: str) -> str:
    """The name of the run that a user means."""
    try:
        dataset = at.kube.get(DATASETS, at.namespace, name.removeprefix("dataset/"))
    except NotFound:
        return name
    runs = runs_of([dataset])
    if not runs:
        why = at.place.run(f"why dataset/{shlex.quote(dataset['metadata']['name'])}")
        raise InputError("NoRun", f"dataset/{dataset['metadata']['name']} has had no run. See: {why}")
    return runs[0].name


def _before(at: Connection, run: str) -> str:
    """The name of the attempt before this one.

    Raises:
        InputError: `NoLog`.
    """
    pod = pod_of(at.kube, at.namespace, run)
    if pod is None:
        raise _no_log(at, run)
    labels = pod["metadata"].get("labels") or {}
    attempt = int(labels.get(LABEL_ATTEMPT) or 1)
    selector = f"{LABEL_RUN_ID}={labels.get(LABEL_RUN_ID, '')},{LABEL_ATTEMPT}={attempt - 1}"
    before = newest([p for p in at.kube.list(PODS, at.namespace, selector) if launched_by(p)])
    if before is None:
        raise InputError(
            "NoLog",
            f"run {run} is attempt {attempt}, and the pod of an earlier one does not exist, so its log is gone."
            if attempt > 1
            else f"run {run} is the first attempt: there is no earlier one.",
        )
    return launched_by(before)


def _known(at: Connection, run: str) -> RunOfDataset | None:
    """A run as the status of its Dataset shows it; None: no status does."""
    known = runs_of(at.kube.list(DATASETS, at.namespace))
    return next((r for r in known if r.name == run), None)


def _no_log(at: Connection, run: str) -> InputError:
    """Say where the log was."""
    known_run = _known(at, run)
    if known_run is None:
        known = runs_of(at.kube.list(DATASETS, at.namespace))
        return unknown(run, [r.name for r in known], "run", at.namespace)
    said = " ".join(f"It ended as {known_run.phase}: {known_run.message or ''}".split())
    if at.local is not None:
        return InputError(
            "NoLog",
            f"run {run} has no log of its own: the committer carried it out, or the run's folder below {at.local.runs} is "
            f"deleted. {said} The log of the committer: lethe local logs committer --dir {shlex.quote(str(at.local.path))}",
        )
    return InputError(
        "NoLog",
        f"run {run} has no pod in namespace {at.namespace}. {said} Its log was the output of a pod with the label "
        f"{' or '.join(f'{label}={run}' for label in POD_LABELS.values())}: look there if the cluster collects logs. If the "
        f"committer carried it out: {at.place.kubectl} logs -n {at.namespace} -l app.kubernetes.io/component=committer",
    )


_VACUUM: Final = "Vacuum"  # the kind in status.runs


def follow(at: Connection, name: str, timeout_seconds: int, goal: WaitGoal = WaitGoal.END) -> None:
    """Wait for a Restatement; then print the result. Exit with 1 if it did not succeed, or not in time."""
    ends = time.monotonic() + timeout_seconds
    with working(f"restatement/{name}") as shown:
        while True:
            document = at.kube.get(RESTATEMENTS, at.namespace, name)
            status = parse_status(RestatementStatus, document.get("status"))
            ended = restatement_ended(status, document["metadata"].get("generation"), goal)
            if ended is not None or time.monotonic() > ends:
                break
            shown.update(f"restatement/{name}: {waits_for(status)}")
            time.sleep(LOOK_SECONDS)
    if ended is not None and ended.succeeded:
        click.echo(f"restatement/{name}: {ended.message}")
        return
    said = ended.message if ended is not None else f"after {timeout_seconds} s: {waits_for(status)}"
    click.echo(f"lethe: restatement/{name} {said}", err=True)
    dataset = str((document["spec"].get("datasetRef") or {}).get("name") or "")
    for line in last_lines(at, dataset) if dataset and ended is not None and ended.failed else ():
        click.echo(line, err=True)
    click.echo(f"next: {at.place.run(f'why restatement/{name}')}", err=True)
    sys.exit(1)


def follow_vacuum(at: Connection, dataset: str, requested: str, before: DatasetStatus, timeout_seconds: int) -> None:
    """Wait until a vacuum of a Dataset has ended; then print its result. Exit with 1 if it did not succeed, or not in time.

    Args:
        requested: The value of the annotation that requests it; "": it was approved.
        before: The status of the Dataset before that.
    """
    ends = time.monotonic() + timeout_seconds
    with working(f"dataset/{dataset}") as shown:
        while True:
            status = dataset_status(at.kube.get(DATASETS, at.namespace, dataset))
            ended = vacuum_ended(status, before, requested)
            if ended is not None or time.monotonic() > ends:
                break
            vacuum = status.vacuum or VacuumStatus()
            run = next((r for r in status.runs or () if r.kind == _VACUUM), None)
            is_running = run is not None and vacuum.decision == "Running"
            text = f"{run.phase or ''} {run.progress or ''}" if run is not None and is_running else vacuum.message or ""
            shown.update(f"dataset/{dataset}: {vacuum.decision or 'Pending'} {text}")
            time.sleep(LOOK_SECONDS)
    if ended is not None and ended.succeeded:
        click.echo(f"dataset/{dataset}: {ended.message}")
        return
    text = ended.message if ended is not None else f"the vacuum has not ended after {timeout_seconds} s"
    click.echo(f"lethe: dataset/{dataset}: {text}", err=True)
    for line in last_lines(at, dataset) if ended is not None and ended.failed else ():
        click.echo(line, err=True)
    click.echo(f"next: {at.place.run(f'why dataset/{dataset}')}", err=True)
    sys.exit(1)


def same_as(before: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Require that an existing object asks for the same.

    Raises:
        InputError: `AlreadyExists`, if the existing object asks for something else.
    """
    if without_defaults(before.get("spec") or {}) != without_defaults(wanted["spec"]):
        name = wanted["metadata"]["name"]
        raise InputError("AlreadyExists", f"restatement/{name} exists and differs. Choose another name with --name.")
