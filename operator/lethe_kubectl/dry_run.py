"""`--dry-run` prints what `lethe plan` prints for the same change. I/O: reads the API server, catalogs and stores.

Commands that create a Restatement look for its batches first.

`lethe plan` is above the commands, and needs packages of its own.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import click
from lethe.base.objects import BufferedObject
from lethe.buffer.digest import WaitingBatch
from lethe.kube import DATASETS

from lethe_kubectl.target import Connection

_PLAN: Final = "lethe_plan.command"
Document = dict[str, Any]
Uploads = Mapping[str, Sequence[BufferedObject]]


def print_plan(at: Connection, *documents: Document, uploads: Uploads = MappingProxyType({})) -> None:
    """Print the plan of an apply. Exit with 1 if it has a problem.

    Args:
        uploads: The data files that would be in the folders of replacements, by the folder's URI.
    """
    _print("print_applied", at, [("the command line", d) for d in documents], uploads)


def print_plan_of_patch(at: Connection, before: Document, patch: Document) -> None:
    """Print the plan of a change of a Dataset's metadata. Exit with 1 if it has a problem."""
    metadata = {k: v for k, v in before["metadata"].items() if k not in ("annotations", "managedFields")}
    annotations = {**(before["metadata"].get("annotations") or {}), **patch["metadata"]["annotations"]}
    print_plan(at, {**before, "metadata": {**metadata, "annotations": annotations}})


def print_plan_of_put(at: Connection, dataset: str, put: WaitingBatch) -> None:
    """Print what a Dataset would do after a batch was put into its buffer. Exit with 1 if it has a problem."""
    _print("print_put", at, at.kube.get(DATASETS, at.namespace, dataset), put)


def require_known_batches(at: Connection, document: Document) -> None:
    """Require that the Dataset of a new Restatement knows its batches.

    A machine that cannot read the table, or lacks the packages, leaves that to the run.

    Raises:
        InputError: `UnknownBatches`.
    """
    plan = _loaded()
    if not isinstance(plan, ModuleNotFoundError):
        plan.require_known_batches(at, document)


def _print(function: str, at: Connection, *arguments: object) -> None:
    plan = _loaded()
    if isinstance(plan, ModuleNotFoundError):
        text = f"the server would accept it. Its effects need {plan.name}: pip install 'lethe-lake[plan]'"
        click.echo(f"lethe: {text}", err=True)
        return
    getattr(plan, function)(at, *arguments)


def _loaded() -> Any:
    """The module of `lethe plan`, or the error if a package of it is missing."""
    try:
        return import_module(_PLAN)
    except ModuleNotFoundError as e:
        return e
