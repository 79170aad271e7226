"""The command `lethe plan`. I/O."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click
from lethe.base.errors import InputError
from lethe.buffer.digest import WaitingBatch
from lethe.cli.output import print_document, print_table, print_text, working
from lethe.kube import NotFound
from lethe_kubectl.dry_run import Uploads
from lethe_kubectl.lookup import KINDS, target_options
from lethe_kubectl.target import Choice, Connection, connected, no_such_path
from lethe_local.admission import Definition
from lethe_local.api.objects import kinds
from lethe_local.cli import files_option, parsed
from lethe_local.folder import NAMESPACE

from lethe_plan import changes
from lethe_plan.changes import (
    ApplyTarget,
    Change,
    Document,
    Planned,
    ResourceDocument,
    ResourceDocuments,
    change_of,
    deletion_of,
    manifests,
)
from lethe_plan.effects import ConfigMaps, PlannedEffects

EXIT_PROBLEM: Final = 1
EXIT_CHANGES: Final = 3


@click.command()
@files_option
@target_options
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table")
@click.option("--exit-code", is_flag=True, help="Exit with 3 if the apply would change a resource.")
def plan(choice: Choice, files: tuple[Path, ...], output: str, exit_code: bool) -> None:
    """Say what an apply of YAML files would change in resources, tables, files and bytes. Only reads.

    Folders are read with their subfolders. Documents of other kinds are left out, and so are resources that are in the
    cluster and not in the files. Exits with 1 if a resource would be refused.
    """
    with connected(choice) as at:
        only = NAMESPACE if at.local is not None else ""
        target = ApplyTarget(at.namespace, fixed=bool(choice.namespace), only=only)
        planned, others = _planned(at, manifests(parsed(files), _definitions(), target))
    if output == "table":
        click.echo(f"{at.place.name}, namespace {at.namespace}", err=True)
        _print(planned)
    else:
        print_document(changes.document(planned, others), output)
    if changes.has_problems(planned):
        sys.exit(EXIT_PROBLEM)
    if exit_code and changes.changes_something(planned):
        sys.exit(EXIT_CHANGES)


def print_applied(
    at: Connection, documents: Sequence[tuple[str, Document]], uploads: Uploads = MappingProxyType({})
) -> None:
    """Print the plan of an apply, for `--dry-run` of other commands. Exit with 1 if it has a problem.

    Args:
        at: Where the documents would be applied.
        documents: Each with where it is.
        uploads: The data files that would be in the folders of replacements, by the folder's URI.
    """
    _print_and_exit(_planned(at, manifests(documents, _definitions(), ApplyTarget(at.namespace)), uploads)[0])


def require_known_batches(at: Connection, document: Document) -> None:
    """Require that the Dataset of a new Restatement knows its batches, as far as that can be seen from here.

    Raises:
        InputError: `UnknownBatches`.
    """
    found = manifests([("the command line", document)], _definitions(), ApplyTarget(at.namespace))
    (change,) = (change_of(manifest, None) for manifest in found.manifests)
    with working("looking for the batches"):
        refused = PlannedEffects(at, [change], {}).unknown_batches(change)
    if refused is not None:
        raise InputError.of(refused)


def print_local(folder: Path, documents: Sequence[tuple[str, Document]]) -> None:
    """Print the plan of `lethe local apply`. Exit with 1 if it has a problem."""
    with connected(Choice(folder)) as at:
        print_applied(at, documents)


def print_deleted(folder: Path, document: Document) -> None:
    """Print the plan of `lethe local delete` of a resource of Lethe."""
    with connected(Choice(folder)) as at:
        found = manifests([("the command line", document)], _definitions(), ApplyTarget(at.namespace))
        changes = [deletion_of(manifest, document) for manifest in found.manifests]
        _print_and_exit(_with_effects(at, changes, {}))


def print_put(at: Connection, dataset: Document, put: WaitingBatch) -> None:
    """Print what a Dataset would do after a batch was put into its buffer. Exit with 1 if it has a problem."""
    found = manifests([("the command line", dataset)], _definitions(), ApplyTarget(at.namespace))
    (change,) = (change_of(manifest, dataset) for manifest in found.manifests)
    with working("reading tables"):
        effect = PlannedEffects(at, [change], {}).of_put(change, put)
    _print_and_exit([Planned(change, effect)])


def _planned(
    at: Connection, read: ResourceDocuments, uploads: Uploads = MappingProxyType({})
) -> tuple[list[Planned], int]:
    """The plan, and the number of documents that are not planned."""
    changes = [_change(at, m) for m in read.manifests]
    return _with_effects(at, changes, read.config_maps, uploads), read.others


def _with_effects(
    at: Connection, changes: list[Change], config_maps: ConfigMaps, uploads: Uploads = MappingProxyType({})
) -> list[Planned]:
    with working("reading tables"):
        effects = PlannedEffects(at, changes, config_maps, uploads)
        return [Planned(c, effects.of(c)) for c in changes]


def _print(planned: Sequence[Planned]) -> None:
    print_table(changes.HEADERS, changes.rows(planned))
    print_text(changes.summary(planned))


def _print_and_exit(planned: Sequence[Planned]) -> None:
    _print(planned)
    if changes.has_problems(planned):
        sys.exit(EXIT_PROBLEM)


def _definitions() -> Mapping[str, Definition]:
    return {k.definition.kind: k.definition for k in kinds() if k.definition is not None}


def _change(at: Connection, manifest: ResourceDocument) -> Change:
    return change_of(manifest, _current(at, manifest) if manifest.definition is not None else None)


def _current(at: Connection, manifest: ResourceDocument) -> Document | None:
    """The resource in the cluster; None: it does not exist."""
    if not manifest.name:
        return None
    try:
        return at.kube.get(KINDS[manifest.kind.lower()], manifest.namespace, manifest.name)
    except NotFound as e:
        if no_such_path(e):
            raise
        return None
