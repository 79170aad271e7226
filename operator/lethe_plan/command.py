"""The command `lethe plan`. I/O."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
from lethe.cli.output import print_document, print_table, print_text, working
from lethe.kube import NotFound
from lethe_kubectl.lookup import KINDS, target_options
from lethe_kubectl.target import Choice, Connection, connected, no_such_path
from lethe_local.admission import Definition
from lethe_local.api.objects import kinds
from lethe_local.cli import files_option, parsed
from lethe_local.folder import NAMESPACE

from lethe_plan import report
from lethe_plan.changes import ApplyTarget, Change, Document, ResourceDocument, ResourceDocuments, change_of, manifests
from lethe_plan.effects import PlannedEffects
from lethe_plan.report import Planned

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
        files_read = _read(files, choice, at)
        with working("reading tables"):
            changes = [_change(at, m) for m in files_read.manifests]
            effects = PlannedEffects(at, changes, files_read.config_maps)
            planned = [Planned(c, effects.of(c)) for c in changes]
    if output == "table":
        click.echo(f"{at.place.name}, namespace {at.namespace}", err=True)
        print_table(report.HEADERS, report.rows(planned))
        print_text(report.summary(planned))
    else:
        print_document(report.document(planned, files_read.others), output)
    if report.has_problems(planned):
        sys.exit(EXIT_PROBLEM)
    if exit_code and report.changes_something(planned):
        sys.exit(EXIT_CHANGES)


def _read(files: tuple[Path, ...], choice: Choice, at: Connection) -> ResourceDocuments:
    only = NAMESPACE if at.local is not None else ""
    target = ApplyTarget(at.namespace, fixed=bool(choice.namespace), only=only)
    return manifests(parsed(files), _definitions(), target)


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
