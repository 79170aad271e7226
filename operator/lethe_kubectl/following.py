"""Waits for a Restatement or a vacuum, and shows its progress. I/O."""

import sys
import time
from typing import Any, Final

import click
from lethe.base.errors import InputError
from lethe.cli.output import working
from lethe.kube import DATASETS, RESTATEMENTS

from lethe_kubectl.logs import last_lines
from lethe_kubectl.status import vacuum_ended
from lethe_kubectl.target import Connection

LOOK_SECONDS: Final = 0.5
_VACUUM: Final = "Vacuum"  # the kind in status.runs
_ENDED: Final = frozenset({"Succeeded", "Failed", "Cancelled", "RolledBack"})


def follow(at: Connection, name: str, timeout_seconds: int) -> None:
    """Wait until a Restatement has ended; then print its result. Exit with 1 if it did not succeed, or not in time."""
    ends = time.monotonic() + timeout_seconds
    with working(f"restatement/{name}") as shown:
        while True:
            document = at.kube.get(RESTATEMENTS, at.namespace, name)
            status = document.get("status") or {}
            current = status.get("observedGeneration") == document["metadata"].get("generation")
            if current and status.get("phase") in _ENDED:
                break
            if current and _condition(document, "Stalled").get("status") == "True":
                break
            if time.monotonic() > ends:
                break
            shown.update(f"restatement/{name}: {status.get('phase', 'Pending')} {status.get('progress', '')}")
            time.sleep(LOOK_SECONDS)
    phase = status.get("phase") or "Pending"
    if current and phase == "Succeeded":
        click.echo(f"restatement/{name}: {_condition(document, 'Succeeded').get('message') or phase}")
        return
    said = _condition(document, "Ready")
    click.echo(
        f"lethe: restatement/{name} is {phase}: {said.get('reason', '')} {said.get('message', '')}".strip(), err=True
    )
    for line in last_lines(at, document["spec"]["datasetRef"]["name"]) if phase == "Failed" else ():
        click.echo(line, err=True)
    click.echo(f"next: {at.place.run(f'why restatement/{name}')}", err=True)
    sys.exit(1)


def follow_vacuum(at: Connection, dataset: str, requested: str, before: Any, timeout_seconds: int) -> None:
    """Wait until a vacuum of a Dataset has ended; then print its result. Exit with 1 if it did not succeed, or not in time.

    Args:
        requested: The value of the annotation that requests it; "": it was approved.
        before: `status` of the Dataset before that.
    """
    ends = time.monotonic() + timeout_seconds
    with working(f"dataset/{dataset}") as shown:
        while True:
            status = at.kube.get(DATASETS, at.namespace, dataset).get("status") or {}
            ended = vacuum_ended(status, before or {}, requested)
            if ended is not None or time.monotonic() > ends:
                break
            vacuum = status.get("vacuum") or {}
            run: dict[str, Any] = next((r for r in status.get("runs") or () if r.get("kind") == _VACUUM), {})
            progress = (
                f"{run.get('phase', '')} {run.get('progress', '')}" if vacuum.get("decision") == "Running" else ""
            )
            shown.update(
                f"dataset/{dataset}: {vacuum.get('decision', 'Pending')} {progress or vacuum.get('message', '')}"
            )
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


def _condition(document: dict[str, Any], name: str) -> dict[str, Any]:
    conditions = (document.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == name), {})


def same_as(before: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Require that an existing object asks for the same.

    Raises:
        InputError: `AlreadyExists`, if the existing object asks for something else.
    """
    # The server adds defaults, all of which are false.
    if {k: v for k, v in (before.get("spec") or {}).items() if v is not False} != wanted["spec"]:
        name = wanted["metadata"]["name"]
        raise InputError("AlreadyExists", f"restatement/{name} exists and differs. Choose another name with --name.")
