"""`lethe vacuum-now`, and `lethe approve` of a plan: annotations of a Dataset, and the wait for the vacuum. I/O."""

import shlex
from datetime import UTC, datetime
from typing import Any

import click
from lethe.base.errors import InputError
from lethe.cli.output import print_document
from lethe.contract.kubernetes import APPROVE, VACUUM_NOW
from lethe.contract.status import VacuumStatus
from lethe.kube import DATASETS
from lethe_operator.resources import manifests

from lethe_kubectl import lookup
from lethe_kubectl.dry_run import print_plan_of_patch
from lethe_kubectl.logs import follow_vacuum
from lethe_kubectl.lookup import change_options, one, target_options
from lethe_kubectl.status import dataset_status
from lethe_kubectl.target import Choice, Connection, connected


@click.command("vacuum-now")
@click.argument("dataset", shell_complete=lookup.datasets)
@click.option("--batch", "batches", multiple=True, help="Purge only the rows of this batch. Repeatable.")
@change_options
@target_options
def vacuum_now(dataset: str, batches: tuple[str, ...], choice: Choice, **how: Any) -> None:
    """Request a vacuum of a DATASET, whatever its policy's triggers and window say."""
    value = manifests.vacuum_now(datetime.now(UTC), batches)
    with connected(choice) as at:
        before = one(at, "dataset", dataset)
        _annotate(at, before, VACUUM_NOW, value, "vacuum requested", **how)


def approve_vacuum(dataset: str, digest: str, choice: Choice, **how: Any) -> None:
    """Approve the planned vacuum of a Dataset. Prints the plan, and asks unless the digest names it.

    Args:
        digest: Of the plan; "": any.
        how: The options of `change_options`.

    Raises:
        InputError: `NothingToApprove`, `OtherPlan`.
    """
    with connected(choice) as at:
        resource = one(at, "dataset", dataset)
        vacuum = dataset_status(resource).vacuum or VacuumStatus()
        planned = (vacuum.plan.digest if vacuum.plan is not None else None) or ""
        if not planned or vacuum.decision != "NeedsApproval":
            look = at.place.run(f"why dataset/{shlex.quote(dataset)}")
            raise InputError(
                "NothingToApprove",
                f"dataset/{dataset} has no vacuum that waits for approval. To approve batches, name them. See: {look}",
            )
        if digest and digest != planned:
            raise InputError(
                "OtherPlan", f"dataset/{dataset}: the plan is now {planned}, not {digest}. Look at it, then approve it."
            )
        plan = (vacuum.message or "").partition(" To approve it:")[0]
        click.echo(plan, err=how["output"] is not None)
        if not digest and not how["dry_run"] and how["output"] not in ("yaml", "json"):
            click.confirm(f"Approve plan {planned}?", abort=True, err=how["output"] is not None)
        _annotate(at, resource, APPROVE, planned, f"plan {planned} approved", **how)


def _annotate(
    at: Connection,
    before: dict[str, Any],
    annotation: str,
    value: str,
    done: str,
    output: str | None,
    wait: bool,
    timeout: int,
    dry_run: bool,
) -> None:
    """Set an annotation of a Dataset, or print the patch that sets it."""
    name = str(before["metadata"]["name"])
    patch = {"metadata": {"annotations": {annotation: value}}}
    if output in ("yaml", "json"):
        metadata = {"name": name, "namespace": at.namespace, **patch["metadata"]}
        print_document({"apiVersion": manifests.API_VERSION, "kind": "Dataset", "metadata": metadata}, output)
        return
    at.kube.patch(DATASETS, at.namespace, name, patch)
    if dry_run and output != "name":
        print_plan_of_patch(at, before, patch)
        return
    click.echo(f"dataset/{name}" if output == "name" else f"dataset/{name} {done}")
    if wait and not dry_run:
        follow_vacuum(at, name, value if annotation == VACUUM_NOW else "", dataset_status(before), timeout)
