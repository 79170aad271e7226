"""Reads the local files as a consolidation would, and refuses what it would refuse. I/O: reads the files.

Writes the objects of a batch: each only if it is absent, and last what completes the batch. I/O.

Invariant: an object that exists is never overwritten, so a repetition goes on where the last attempt ended, and two attempts with
different files never mix.

`lethe put --gateway`: without access to the cluster's API and to the store. I/O.

The command `lethe put`. I/O.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from lethe import ledger_store
from lethe.base.errors import InputError
from lethe.base.ids import MAX_BATCH_ID_LENGTH, batch_id_of_folder
from lethe.buffer.digest import WaitingBatch
from lethe.buffer.upload import BufferUpload, Known, LocalFile, data_files, judge_entry, plan_upload, strangers
from lethe.cli.output import print_document, progress, working
from lethe.client import Ingest, Uploaded
from lethe.contract.dataset import BufferSpec
from lethe.contract.settings import RFC_4180, ConsolidationMode, SchemaEvolution
from lethe.decoder.process import NoDecoder
from lethe.guards import claim as guards
from lethe.iceberg import catalogs
from lethe.iceberg.facts import observe
from lethe.ingest.buffer_files import ReadSettings
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.checking import check_files, columns_of
from lethe.ingest.schema_fit import named_folders, path_columns
from lethe.ledger.ledger import get_many
from lethe.storage.object_store import ObjectStore, open_store
from lethe_operator.resources.dataset import Dataset, parse_dataset
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from lethe_kubectl import lookup
from lethe_kubectl.dry_run import print_plan_of_put
from lethe_kubectl.lookup import gateway_options, one, target_options, use_catalogs
from lethe_kubectl.target import Choice, Gateway, connected


def check_local_files(
    table: Table,
    batch_column: str,
    batch_id: str,
    files: list[Path],
    folder: Path,
    buffer: BufferSpec,
    add_columns: bool,
    on_file: Callable[[], object],
) -> int:
    """Read all rows, with the code of consolidations.

    Args:
        table: The table.
        folder: The batch's; files may be in folders below it that name values.
        add_columns: `spec.schemaEvolution` is AddColumns.
        on_file: Called after each file.

    Returns:
        Their number.

    Raises:
        InputError: With the reason and the message with which the batch would be refused, or `UnsupportedColumn`,
            `NotChecked`.
    """
    try:
        columns = columns_of(table.schema())
    except InputError as e:
        raise InputError(e.reason, f"{e.message}. Put the files with --no-check.") from None
    root, uris = f"file://{folder}", [(path, f"file://{path}") for path in files]
    tasks = [FileTask(batch_id, u, p.stat().st_size, folders=named_folders(u, root)) for p, u in uris]
    settings = ReadSettings(
        batch_column,
        {},
        buffer.format,
        add_columns,
        csv=buffer.csv or RFC_4180,
        path_columns=path_columns(table.schema(), table.spec()),
    )
    try:
        checked = check_files(columns, tasks, settings, on_file=on_file)
    except NoDecoder as e:
        raise InputError("NotChecked", f"The files cannot be checked here: {e}. Put them with --no-check.") from None
    if checked.refusal is not None:
        raise InputError(checked.refusal.reason, f"{checked.refusal.message}. Nothing was put into the buffer.")
    return checked.rows or 0


_PIECE: Final = 8 * 1024 * 1024  # bytes that are compared at once


def is_there(store: ObjectStore, upload: BufferUpload) -> bool:
    """Whether the buffer holds the whole batch.

    Raises:
        InputError: `OtherFiles`, if it holds other files of this id.
    """
    listed = list(store.list(upload.folder)) if upload.marker else []
    if others := strangers(upload, listed):
        raise _other(others[0], upload)
    if upload.marker and all(o.key != upload.marker for o in listed):
        return False
    return all(store.head(uri) is not None for uri in upload.files)


def transfer(store: ObjectStore, upload: BufferUpload, folder: Path, on_file: Callable[[], object]) -> int:
    """Write what is missing.

    Args:
        on_file: Called after each file, written or found.

    Returns:
        The number of objects written, without the marker.

    Raises:
        InputError: `OtherFiles`, if an object exists with another content.
        StoreError: A store refused a request or did not answer.
    """
    written = 0
    for uri, file in upload.files.items():
        if store.head(uri) is None and store.put_if_absent(uri, (folder / file.path).read_bytes()):
            written += 1
        elif not _is_same(store, uri, folder / file.path):
            raise _other(uri, upload)
        on_file()
    if upload.marker:
        store.put_if_absent(upload.marker, b"")
    return written


def _is_same(store: ObjectStore, uri: str, path: Path) -> bool:
    existing = store.head(uri)
    if existing is None or existing.size != path.stat().st_size:
        return False
    start = 0
    for piece in _pieces(path):
        if store.read_range(uri, start, len(piece)) != piece:
            return False
        start += len(piece)
    return True


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _other(uri: str, upload: BufferUpload) -> InputError:
    return InputError(
        "OtherFiles",
        f"{uri} exists and is not a file of this folder, so another producer, or an attempt with other files, uses the batch id "
        f"{upload.batch_id}. Nothing was overwritten. Choose another id with --batch, or remove what is in {upload.folder}.",
    )


def put_through(gateway: Gateway, namespace: str, dataset: str, folder: Path, given: str) -> Uploaded:
    """Upload a folder as one batch.

    Args:
        given: The id of the batch; "": the name of the folder, without `<column>=`.

    Raises:
        InputError: The user has to change something.
        TransientError: A dependency is temporarily unavailable.
    """
    column, _, encoded = folder.name.partition("=")
    batch_id = given or (batch_id_of_folder(column, folder.name) if encoded else None)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    ca_file = str(gateway.ca_file) if gateway.ca_file is not None else None
    with Ingest(gateway.url, namespace, dataset, gateway.token, ca_file) as ingest, progress() as bar:
        task = bar.add_task("uploading", total=size)
        return ingest.put(batch_id or folder.name, folder, lambda sent: bar.advance(task, sent))


_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("dataset", shell_complete=lookup.datasets)
@click.argument("source", metavar="FOLDER", type=_FOLDER)
@click.option("--batch", "given", default="", help="The id of the batch. Default: the name of the folder.")
@click.option("--no-check", is_flag=True, help="Do not read the files before the upload.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write nothing: check the files, and print the plan of the Dataset as `lethe plan` does.",
)
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
        # needs requests, which no other command does

        uploaded = put_through(gateway, choice.namespace or "default", dataset, source.resolve(), given)
        what = {"files": uploaded.files, "bytes": uploaded.bytes, "rows": None, "done": "put"}
        _print(dataset, uploaded.batch_id, "", what, False, output)
        return
    with connected(choice) as at:
        document = one(at, "dataset", dataset)
        use_catalogs(at, document)
    of, folder = parse_dataset(document), source.resolve()
    batch_id = id_of(folder.name, of.spec.batch_column, given)
    files = data_files(
        LocalFile(p.relative_to(folder).as_posix(), p.stat().st_size) for p in folder.rglob("*") if p.is_file()
    )
    upload = plan_upload(of.spec.buffer.uri, of.spec.buffer.layout, of.spec.batch_column, batch_id, files)
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
    if dry_run and output == "text" and done == "put":
        now = datetime.now(UTC)
        waiting = WaitingBatch(batch_id, upload.folder, upload.bytes, now, "", len(upload.files))
        print_plan_of_put(at, dataset, waiting)


def id_of(folder_name: str, batch_column: str, given: str) -> str:
    """The id of the batch: the given one, or that of the folder's name.

    Raises:
        InputError: `InvalidBatchId`.
    """
    batch_id = given or batch_id_of_folder(batch_column, folder_name) or folder_name
    if not 1 <= len(batch_id) <= MAX_BATCH_ID_LENGTH:
        raise InputError(
            "InvalidBatchId",
            f"the batch id {batch_id[:80]!r} has {len(batch_id)} characters, expected 1 to {MAX_BATCH_ID_LENGTH}. Name "
            "one with --batch.",
        )
    return batch_id


def _require_reachable(of: Dataset, catalog_is_local: bool) -> None:
    """Require a buffer that this machine can reach.

    Raises:
        InputError: `BufferLocal`, if the buffer is a folder of another machine.
    """
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


def _known(of: Dataset, table: Table | None, upload: BufferUpload) -> Known:
    """What is known of the batch.

    Raises:
        InputError: `BatchIdUsed`.
    """
    if table is None:
        return Known.NEW
    facts = observe(table, of.spec.batch_column, of.spec.table.name)
    entries = get_many(ledger_store.load(table.io, facts).ledger.batches, [upload.batch_id])
    return judge_entry(upload, entries.get(upload.batch_id))


def _checked(of: Dataset, table: Table, upload: BufferUpload, folder: Path) -> int:
    """The number of rows.

    Raises:
        InputError: With the reason of the refusal.
    """
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
