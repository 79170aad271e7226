"""The command `lethe put`. I/O."""

from pathlib import Path
from typing import Any

import click
from lethe.base.errors import InputError
from lethe.base.ids import MAX_BATCH_ID_LENGTH, batch_id_of_folder
from lethe.buffer.upload import Known, LocalFile, Upload, data_files, judge_entry, plan_upload
from lethe.cli.output import print_document, progress, working
from lethe.contract.settings import ConsolidationMode, SchemaEvolution
from lethe.guards import rejections as guards
from lethe.iceberg import catalogs
from lethe.iceberg.facts import observe
from lethe.ledger.parts import get_many
from lethe.ledger_store import store as ledger_store
from lethe.storage.object_store import open_store
from lethe_operator.resources.dataset import Dataset, parse_dataset
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from lethe_kubectl import completion
from lethe_kubectl.dataset_table import use_catalogs
from lethe_kubectl.gateway import Gateway
from lethe_kubectl.lookup import one
from lethe_kubectl.options import gateway_options, target_options
from lethe_kubectl.put.check import check_local_files
from lethe_kubectl.put.transfer import is_there, transfer
from lethe_kubectl.target import Choice, connected

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("dataset", shell_complete=completion.datasets)
@click.argument("source", metavar="FOLDER", type=_FOLDER)
@click.option("--batch", "given", default="", help="The id of the batch. Default: the name of the folder.")
@click.option("--no-check", is_flag=True, help="Do not read the files before the upload.")
@click.option("--dry-run", is_flag=True, help="Check everything, and write nothing.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml", "name"]), default="text", show_default=True)
@gateway_options
@target_options
def put(
    dataset: str,
    source: Path,
    given: str,
    no_check: bool,
    dry_run: bool,
    output: str,
    gateway: Gateway | None,
    choice: Choice,
) -> None:
    """Put the files of a local FOLDER as one batch into the buffer of a DATASET.

    First reads them as a consolidation would, and refuses what that would refuse. Writes each object only if it is absent, and
    last what completes the batch, so an interrupted command can be repeated. The same batch again changes nothing. Uses your own
    credentials: those of the Dataset's catalog in .pyiceberg.yaml.

    With --gateway it needs neither these nor access to the cluster: the gateway checks the files, after the upload. The token
    comes from --token-file or the variable LETHE_GATEWAY_TOKEN.
    """
    if gateway is not None:
        if no_check or dry_run:
            raise click.UsageError(
                "--no-check and --dry-run do not work with --gateway: it checks the files after the upload."
            )
        from lethe_kubectl.put.through_gateway import put_through  # needs requests, which no other command does

        uploaded = put_through(gateway, choice.namespace or "default", dataset, source.resolve(), given)
        what = {"files": uploaded.files, "bytes": uploaded.bytes, "rows": None, "done": "put"}
        _print(dataset, uploaded.batch_id, "", what, False, output)
        return
    with connected(choice) as at:
        document = one(at, "dataset", dataset)
        use_catalogs(at, document)
    of, folder = parse_dataset(document), source.resolve()
    batch_id = id_of(folder.name, of.spec.batch_column, given)
    found = data_files(
        LocalFile(p.relative_to(folder).as_posix(), p.stat().st_size) for p in folder.rglob("*") if p.is_file()
    )
    upload = plan_upload(of.spec.buffer.uri, of.spec.buffer.layout, of.spec.batch_column, batch_id, found)
    properties = catalogs.properties(of.spec.table.catalog)
    _require_reachable(of, catalogs.is_local(properties))
    with working("reading the ledger"):
        table = _table(of)
        known = _known(of, table, upload)
    store = open_store(of.spec.buffer.uri, properties)
    is_same = known is Known.SAME or is_there(store, upload)
    rows = None if no_check or known is Known.SAME or table is None else _checked(of, table, upload, folder)
    written = 0
    if not dry_run and known is not Known.SAME:
        with progress() as bar:
            task = bar.add_task("uploading", total=len(upload.files))
            written = transfer(store, upload, folder, lambda: bar.advance(task))
    done = "unchanged" if is_same and not written else "put"
    what = {"files": len(upload.files), "bytes": upload.bytes, "rows": rows, "done": done}
    _print(of.meta.name, batch_id, upload.folder, what, dry_run, output)


def id_of(folder_name: str, batch_column: str, given: str) -> str:
    """The id of the batch: the given one, or that of the folder's name. Raises: InputError (`InvalidBatchId`)."""
    found = given or batch_id_of_folder(batch_column, folder_name) or folder_name
    if not 1 <= len(found) <= MAX_BATCH_ID_LENGTH:
        raise InputError(
            "InvalidBatchId",
            f"the batch id {found[:80]!r} has {len(found)} characters, expected 1 to {MAX_BATCH_ID_LENGTH}. Name "
            "one with --batch.",
        )
    return found


def _require_reachable(of: Dataset, catalog_is_local: bool) -> None:
    """Raises: InputError (`BufferLocal`), if the buffer is a folder of another machine."""
    where = f"Dataset {of.meta.name}: spec.buffer.uri"
    if problem := guards.local(where, of.spec.buffer.uri, of.spec.table.catalog, catalog_is_local):
        raise InputError("BufferLocal", problem)


def _table(of: Dataset) -> Table | None:
    """None: the operator has not created it yet."""
    try:
        return catalogs.load(of.spec.table.catalog).load_table(of.spec.table.name)
    except (NoSuchTableError, NoSuchNamespaceError):
        click.echo(
            f"lethe: the table {of.spec.table.name} does not exist yet, so the columns of the files are not checked.",
            err=True,
        )
        return None


def _known(of: Dataset, table: Table | None, upload: Upload) -> Known:
    """Raises: InputError (`BatchIdUsed`)."""
    if table is None:
        return Known.NEW
    facts = observe(table, of.spec.batch_column, of.spec.table.name)
    entries = get_many(ledger_store.load(table.io, facts).ledger.batches, [upload.batch_id])
    return judge_entry(upload, entries.get(upload.batch_id))


def _checked(of: Dataset, table: Table, upload: Upload, folder: Path) -> int:
    """The number of rows. Raises: InputError, with the reason of the refusal."""
    if of.spec.consolidation.mode is ConsolidationMode.REGISTER:
        click.echo("lethe: whether the files can be registered unchanged is checked by the run.", err=True)
    files = [folder / f.path for f in upload.files.values()]
    with progress() as bar:
        task = bar.add_task("checking", total=len(files))
        return check_local_files(
            table,
            of.spec.batch_column,
            upload.batch_id,
            files,
            folder,
            of.spec.buffer,
            of.spec.schema_evolution is SchemaEvolution.ADD_COLUMNS,
            lambda: bar.advance(task),
        )


def _print(dataset: str, batch_id: str, uri: str, what: dict[str, Any], dry_run: bool, output: str) -> None:
    dry = " (dry run)" if dry_run else ""
    match output:
        case "json" | "yaml":
            document = {
                "dataset": dataset,
                "batch": batch_id,
                **({"uri": uri} if uri else {}),
                **what,
                "dryRun": dry_run,
            }
            print_document(document, output)
        case "name":
            click.echo(batch_id)
        case _:
            rows = f", {what['rows']} rows" if what["rows"] is not None else ""
            size = f"{what['files']} files, {what['bytes']} bytes{rows}"
            click.echo(f"dataset/{dataset} batch {batch_id} {what['done']}{dry}: {size}")
