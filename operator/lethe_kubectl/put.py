"""The command `lethe put`: checks local files as a consolidation would, and writes the objects of batches. I/O.

Each object is written only if it is absent, and last what completes the batch. With --gateway, the gateway does both.

Invariant: an object that exists is never overwritten, so a repetition goes on where the last attempt ended, and two attempts with
different files never mix.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import click
from lethe import ledger_store
from lethe.base.errors import InputError, LetheError
from lethe.buffer.digest import WaitingBatch
from lethe.buffer.upload import BufferUpload, Known, LocalFile, judge_entry, plan_upload, strangers
from lethe.cli.output import print_document, progress, working
from lethe.client import GatewayClient
from lethe.contract.checks import CheckSpec
from lethe.contract.dataset import BufferSpec
from lethe.contract.settings import RFC_4180, BufferLayout, ConsolidationMode, SchemaEvolution
from lethe.decoder.process import NoDecoder
from lethe.guards import claim
from lethe.iceberg import catalogs
from lethe.iceberg.facts import observe
from lethe.ingest.buffer_files import FileOutcome, Reader, ReadSettings
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.check_conditions import checks_of
from lethe.ingest.checking import check_files, columns_of
from lethe.ingest.schema_fit import known_columns, named_folders, path_columns
from lethe.ledger.ledger import BatchEntry, get_many
from lethe.storage.object_store import ObjectStore, open_store
from lethe_operator.resources.dataset import Dataset, parse_dataset
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from rich.progress import TaskID

from lethe_kubectl import lookup
from lethe_kubectl.dry_run import print_plan_of_put
from lethe_kubectl.local_batches import (
    NAME,
    LocalBatch,
    batches_in,
    batches_of_folders,
    batches_of_manifest,
    require_distinct,
)
from lethe_kubectl.lookup import gateway_options, one, target_options, use_catalogs
from lethe_kubectl.many import AT_ONCE, ManyOutcomes, Outcome, finish, put_groups, put_many
from lethe_kubectl.target import Choice, Gateway, connected


def check_local_files(
    table: Table,
    batch_column: str,
    batch_id: str,
    files: Mapping[str, Path],
    buffer: BufferSpec,
    add_columns: bool,
    on_file: Callable[[], object],
    checks: Sequence[CheckSpec] = (),
) -> int:
    """Read all rows, with the code of consolidations.

    Args:
        table: The table.
        files: By their paths in the batch, whose folders may name values.
        add_columns: `spec.schemaEvolution` is AddColumns.
        on_file: Called after each file.
        checks: What must hold for the batch. If one would hold it, a line on standard error says so.

    Returns:
        Their number.

    Raises:
        InputError: With the reason and the message with which the batch would be refused, or `UnsupportedColumn`,
            `InvalidCheck`, `NotChecked`.
    """
    try:
        columns = columns_of(table.schema())
        made = checks_of(checks, table.schema(), known_columns(columns))
    except InputError as e:
        raise InputError(e.reason, f"{e.message}. Put the files with --no-check.") from None
    tasks = _tasks(batch_id, files)
    settings = replace(_read_settings(table, batch_column, buffer, add_columns), checks=made)
    try:
        checked = check_files(columns, tasks, settings, on_file=on_file)
    except NoDecoder as e:
        raise InputError("NotChecked", f"The files cannot be checked here: {e}. Put them with --no-check.") from None
    if checked.refusal is not None:
        raise InputError(checked.refusal.reason, f"{checked.refusal.message}. Nothing was put into the buffer.")
    if checked.hold is not None:
        click.echo(f"lethe: batch {batch_id} will be held until somebody approves it: {checked.hold.message}", err=True)
    return checked.rows or 0


def _tasks(batch_id: str, files: Mapping[str, Path]) -> list[FileTask]:
    return [
        FileTask(batch_id, f"file://{p}", p.stat().st_size, folders=named_folders(f"/{path}", "/"))
        for path, p in files.items()
    ]


def _read_settings(table: Table, batch_column: str, buffer: BufferSpec, add_columns: bool) -> ReadSettings:
    return ReadSettings(
        batch_column,
        {},
        buffer.format,
        add_columns,
        csv=buffer.csv or RFC_4180,
        path_columns=path_columns(table.schema(), table.spec()),
    )


_SMALL_BYTES: Final = 1024 * 1024
"""Of a batch that is read together with others."""
_PIECE: Final = 8 * 1024 * 1024  # bytes that are compared at once


def is_there(store: ObjectStore, upload: BufferUpload) -> bool:
    """Whether the buffer holds the whole batch, by the names and sizes of its objects.

    Raises:
        InputError: `OtherFiles`, if it holds other files of this id.
    """
    if upload.marker:
        listed = list(store.list(upload.folder))
    else:
        listed = [o for o in map(store.head, upload.files) if o is not None]
    sizes = {o.key: o.size for o in listed}
    others = strangers(upload, listed) if upload.marker else []
    others += [uri for uri, file in upload.files.items() if sizes.get(uri, file.size) != file.size]
    if others:
        raise _other(others[0], upload)
    return all(uri in sizes for uri in (*upload.files, *([upload.marker] if upload.marker else [])))


def transfer(store: ObjectStore, upload: BufferUpload, files: Mapping[str, Path], on_file: Callable[[], object]) -> int:
    """Write what is missing.

    Args:
        files: By their paths in the batch.
        on_file: Called after each file, written or found.

    Returns:
        The number of objects written, without the marker.

    Raises:
        InputError: `OtherFiles`, if an object exists with another content.
        StoreError: A store refused a request or did not answer.
    """
    written = 0
    for uri, file in upload.files.items():
        path = files[file.path]
        if store.head(uri) is None and store.put_if_absent(uri, path.read_bytes()):
            written += 1
        elif not _is_same(store, uri, path):
            raise _other(uri, upload)
        on_file()
    if upload.marker:
        store.put_if_absent(upload.marker, upload.marker_content)
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


def gateway_client(gateway: Gateway, namespace: str) -> GatewayClient:
    """A client that threads may share."""
    ca_file = str(gateway.ca_file) if gateway.ca_file is not None else None
    return GatewayClient(gateway.url, gateway.token, namespace, ca_file)


def put_through(
    client: GatewayClient,
    dataset: str,
    reference: str,
    batch: LocalBatch,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> Outcome:
    """Upload a folder as one batch.

    Args:
        reference: The id of the run that delivers it; "": none.

    Raises:
        InputError: `NeedsFolder`, and the problems that the gateway reports.
        TransientError: A dependency is temporarily unavailable.
    """
    if batch.folder is None:
        raise InputError("NeedsFolder", "with --gateway a batch is a folder. Put its files into one.")
    uploaded = client.put(dataset, batch.batch_id, batch.folder, on_bytes, reference)
    return Outcome(uploaded.batch_id, "", uploaded.files, uploaded.bytes, None, "put")


@dataclass(frozen=True)
class BufferTarget:
    """Where the batches of a Dataset go, and what is known of them."""

    dataset: Dataset
    table: Table | None
    """None: the operator has not created it yet."""
    entries: Mapping[str, BatchEntry]
    """Of the ledger, by batch id."""
    store: ObjectStore
    reference: str = ""
    """The id of the run that delivers the batches; "": none."""

    def upload_of(self, batch_id: str, files: Mapping[str, Path]) -> BufferUpload:
        """Which file becomes which object.

        Raises:
            InputError: As `plan_upload`.
        """
        buffer, local_files = self.dataset.spec.buffer, [LocalFile(f, p.stat().st_size) for f, p in files.items()]
        column = self.dataset.spec.batch_column
        return plan_upload(buffer.uri, buffer.layout, column, batch_id, local_files, self.reference)


def target_of(of: Dataset, batch_ids: Sequence[str], reference: str = "") -> BufferTarget:
    """Open the table, the ledger and the buffer of a Dataset.

    Args:
        batch_ids: Of those that may be put.
        reference: The id of the run that delivers them; "": none.

    Raises:
        InputError: `BufferLocal`, and what opening the table and the store raises.
    """
    properties = catalogs.properties(of.spec.table.catalog)
    _require_reachable(of, catalogs.is_local(properties))
    with working("reading the ledger"):
        table = _table(of)
        entries: Mapping[str, BatchEntry] = {}
        if table is not None:
            facts = observe(table, of.spec.batch_column, of.spec.table.name)
            entries = get_many(ledger_store.load(table.io, facts).ledger.batches, batch_ids)
    return BufferTarget(of, table, entries, open_store(of.spec.buffer.uri, properties), reference)


OnFile = Callable[[str, int], object]
"""Called after each file with what was done to it, and the number of files."""


@dataclass(frozen=True)
class BegunBatch:
    """A batch that the buffer does not hold as a whole."""

    upload: BufferUpload
    files: Mapping[str, Path]
    """By their paths in the batch."""


def put_group(
    target: BufferTarget, check: bool, dry_run: bool, many: ManyOutcomes, group: Sequence[LocalBatch]
) -> None:
    """Put some of many batches into the buffer. One that is complete there, by names and sizes of files, is skipped.

    Args:
        check: Read the files first, as a consolidation would.
    """
    begun = [b for b in (many.attempt(b.batch_id, partial(_begin, target, b)) for b in group) if b is not None]
    rows = _rows_together(target, begun) if check else {}
    for batch in begun:
        batch_id = batch.upload.batch_id
        many.attempt(batch_id, partial(_put_begun, target, batch, check, dry_run, rows.get(batch_id)))


def _put_begun(target: BufferTarget, batch: BegunBatch, check: bool, dry_run: bool, rows: int | None) -> Outcome:
    upload, files = batch.upload, batch.files
    rows, _ = _send(target, upload, files, check, dry_run, rows)
    return Outcome(upload.batch_id, upload.folder, len(files), upload.bytes, rows, "put")


def _begin(target: BufferTarget, batch: LocalBatch) -> BegunBatch | Outcome:
    """What is left to do.

    Raises:
        InputError: `BatchIdUsed`, `OtherFiles`, and as `plan_upload`.
        StoreError: A store refused a request or did not answer.
    """
    files = batch.files()
    upload = target.upload_of(batch.batch_id, files)
    is_promoted = judge_entry(upload, target.entries.get(upload.batch_id)) is Known.SAME
    if is_promoted or is_there(target.store, upload):
        return Outcome(upload.batch_id, upload.folder, len(files), upload.bytes, None, "unchanged")
    return BegunBatch(upload, files)


def _rows_together(target: BufferTarget, batches: Sequence[BegunBatch]) -> dict[str, int]:
    """The rows of small batches that fit, by batch id, read by one decoder. The others have to be checked alone.

    With `spec.checks`, all have to.
    """
    small = {b.upload.batch_id: b.files for b in batches if b.upload.bytes <= _SMALL_BYTES}
    spec = target.dataset.spec
    if target.table is None or not small or spec.checks:
        return {}
    add_columns = spec.schema_evolution is SchemaEvolution.ADD_COLUMNS
    try:
        columns = columns_of(target.table.schema())
        reader = Reader(columns, _read_settings(target.table, spec.batch_column, spec.buffer, add_columns))
        outcomes: dict[tuple[str, str], FileOutcome] = {}
        tasks = [task for batch_id, files in small.items() for task in _tasks(batch_id, files)]
        deque(reader.tables(tasks, outcomes, rows=False), maxlen=0)
    except (LetheError, NoDecoder, OSError):
        return {}  # checking each alone says what is wrong
    wrong = {batch_id for (batch_id, _), outcome in outcomes.items() if outcome.error is not None}
    rows: Counter[str] = Counter({batch_id: 0 for batch_id in small if batch_id not in wrong})
    for (batch_id, _), outcome in outcomes.items():
        if batch_id in rows:
            rows[batch_id] += outcome.rows
    return dict(rows)


def put_upload(
    target: BufferTarget,
    upload: BufferUpload,
    files: Mapping[str, Path],
    check: bool,
    dry_run: bool,
    on_file: OnFile = lambda _what, _files: None,
) -> Outcome:
    """Put the files of a batch where they belong. Compares also the contents of a batch that is complete.

    Args:
        files: By their paths in the batch.
        check: Read the files first, as a consolidation would.

    Raises:
        InputError: With the reason of a refusal, and others.
        TransientError: The store refused a request or did not answer.
    """
    is_promoted = judge_entry(upload, target.entries.get(upload.batch_id)) is Known.SAME
    is_same = is_promoted or is_there(target.store, upload)
    rows, written = (None, 0) if is_promoted else _send(target, upload, files, check, dry_run, on_file=on_file)
    done = "unchanged" if is_same and not written else "put"
    return Outcome(upload.batch_id, upload.folder, len(files), upload.bytes, rows, done)


def _send(
    target: BufferTarget,
    upload: BufferUpload,
    files: Mapping[str, Path],
    check: bool,
    dry_run: bool,
    rows: int | None = None,
    on_file: OnFile = lambda _what, _files: None,
) -> tuple[int | None, int]:
    """Check the files, and write those that are missing.

    Args:
        rows: Of the files, if they were read and fit.

    Returns:
        The number of rows, and that of the objects written.

    Raises:
        InputError: With the reason of a refusal, and others.
        TransientError: The store refused a request or did not answer.
    """
    if check and rows is None and target.table is not None:
        on_check = partial(on_file, "checking", len(files))
        rows = _checked(target.dataset, target.table, upload.batch_id, files, on_check)
    written = 0 if dry_run else transfer(target.store, upload, files, partial(on_file, "uploading", len(files)))
    return rows, written


def put_and_show(
    target: BufferTarget, upload: BufferUpload, files: Mapping[str, Path], check: bool, dry_run: bool
) -> Outcome:
    """Put the files of a batch where they belong, with a progress bar.

    Raises:
        InputError: With the reason of a refusal, and others.
        TransientError: The store refused a request or did not answer.
    """
    with progress() as bar:
        tasks: dict[str, TaskID] = {}

        def on_file(what: str, count: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=count)
            bar.advance(tasks[what])

        return put_upload(target, upload, files, check, dry_run, on_file=on_file)


def _require_reachable(of: Dataset, catalog_is_local: bool) -> None:
    """Require a buffer that this machine can reach.

    Raises:
        InputError: `BufferLocal`, if the buffer is a folder of another machine.
    """
    where = f"Dataset {of.meta.name}: spec.buffer.uri"
    if problem := claim.local(where, of.spec.buffer.uri, of.spec.table.catalog, catalog_is_local):
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


def _checked(of: Dataset, table: Table, batch_id: str, files: Mapping[str, Path], on_file: Callable[[], object]) -> int:
    """The number of rows.

    Raises:
        InputError: With the reason of the refusal.
    """
    spec = of.spec
    add_columns = spec.schema_evolution is SchemaEvolution.ADD_COLUMNS
    return check_local_files(table, spec.batch_column, batch_id, files, spec.buffer, add_columns, on_file, spec.checks)


_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("dataset", shell_complete=lookup.datasets)
@click.argument("folders", metavar="[FOLDER]...", nargs=-1, type=_FOLDER)
@click.option(
    "--each", is_flag=True, help="Each folder directly in FOLDER is a batch. For a buffer of files, also each file."
)
@click.option(
    "--manifest",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Batches by a CSV file with the columns batch,folder or batch,file; or by JSON lines with batch, and folder or files. "
    "- reads standard input.",
)
@click.option(
    "--batch",
    "given",
    default="",
    help="The id of the batch. {name} stands for the name of the folder.  [default: {name}]",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=AT_ONCE,
    show_default=True,
    help="How many batches are put at once.",
)
@click.option(
    "--reference",
    default="",
    help="The id of the run that delivers the batches, such as of a DAG. `lethe revert` takes back all of them by it.",
)
@click.option("--no-check", is_flag=True, help="Do not read the files before the upload.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write nothing: check the files. For one batch, print the plan of the Dataset as `lethe plan` does.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml", "name"]), default="text", show_default=True)
@gateway_options
@target_options
def put(
    dataset: str,
    folders: tuple[Path, ...],
    each: bool,
    manifest: Path | None,
    given: str,
    parallel: int,
    reference: str,
    no_check: bool,
    dry_run: bool,
    output: str,
    gateway: Gateway | None,
    choice: Choice,
) -> None:
    """Put the files of local folders into the buffer of a DATASET. Each FOLDER is one batch.

    First reads them as a consolidation would, and refuses what that would refuse. Writes each object only if it is absent, and
    last what completes the batch, so an interrupted command can be repeated. The same batch again changes nothing. Uses your own
    credentials: those of the Dataset's catalog in .pyiceberg.yaml.

    Several folders, --each and --manifest put many batches. Those that are complete already, by the names and sizes of their
    files, are skipped. A batch that fails does not stop the others; then the exit code is 1, and the same command tries again
    what failed.

    With --gateway it needs neither these nor access to the cluster: the gateway checks the files, after the upload. The token
    comes from --token-file or the variable LETHE_GATEWAY_TOKEN.
    """
    if bool(folders) == (manifest is not None) or (each and not folders):
        raise click.UsageError("Name folders, or a --manifest.")
    is_one = len(folders) == 1 and not each
    if given and NAME not in given and not is_one:
        raise click.UsageError(f"--batch of several batches needs {NAME}.")
    roots = [f.resolve() for f in folders]
    if gateway is not None:
        if no_check or dry_run:
            raise click.UsageError(
                "--no-check and --dry-run do not work with --gateway: it checks the files after the upload."
            )
        batches = _batches(roots, each, manifest, given, BufferLayout.DIRECTORY, "")
        with gateway_client(gateway, choice.namespace or "default") as client:
            if not is_one:
                finish(
                    dataset,
                    put_many(batches, partial(put_through, client, dataset, reference), parallel),
                    False,
                    output,
                )
                return
            with progress() as bar:
                total = sum(p.stat().st_size for p in batches[0].files().values())
                task = bar.add_task("uploading", total=total)
                outcome = put_through(client, dataset, reference, batches[0], lambda sent: bar.advance(task, sent))
        _print(dataset, outcome, False, output)
        return
    with connected(choice) as at:
        document = one(at, "dataset", dataset)
        use_catalogs(at, document)
    of = parse_dataset(document)
    batches = _batches(roots, each, manifest, given, of.spec.buffer.layout, of.spec.batch_column)
    target = target_of(of, [b.batch_id for b in batches], reference)
    if of.spec.consolidation.mode is ConsolidationMode.REGISTER and not no_check and target.table is not None:
        click.echo("lethe: whether the files can be registered unchanged is checked by the run.", err=True)
    if not is_one:
        many = put_groups(batches, partial(put_group, target, not no_check, dry_run), parallel)
        finish(of.meta.name, many, dry_run, output)
        return
    files = batches[0].files()
    outcome = put_and_show(target, target.upload_of(batches[0].batch_id, files), files, not no_check, dry_run)
    _print(of.meta.name, outcome, dry_run, output)
    if dry_run and output == "text" and outcome.done == "put":
        now = datetime.now(UTC)
        waiting = WaitingBatch(outcome.batch_id, outcome.uri, outcome.bytes, now, "", outcome.files)
        print_plan_of_put(at, dataset, waiting)


def _batches(
    folders: Sequence[Path], each: bool, manifest: Path | None, template: str, layout: BufferLayout, batch_column: str
) -> list[LocalBatch]:
    """The batches that the arguments name.

    Raises:
        InputError: `DuplicateBatch`, `InvalidBatchId`, `InvalidManifest`, `NoBatches`.
    """
    if manifest is not None:
        base = Path.cwd() if str(manifest) == "-" else manifest.resolve().parent
        with click.open_file(str(manifest), encoding="utf-8-sig") as file:
            batches = batches_of_manifest(file.read(), base)
    elif each:
        batches = []
        for folder in folders:
            found, others = batches_in(folder, layout, batch_column, template)
            batches += found
            if others:
                click.echo(f"lethe: {others} files directly in {folder} belong to no batch.", err=True)
        if not batches:
            raise InputError("NoBatches", f"{folders[0]} contains no folder, so there is no batch to put.")
    else:
        batches = batches_of_folders(folders, batch_column, template)
    require_distinct(batches)
    return batches


def _print(dataset: str, outcome: Outcome, dry_run: bool, output: str) -> None:
    dry = " (dry run)" if dry_run else ""
    match output:
        case "json" | "yaml":
            print_document({"dataset": dataset, **outcome.to_document(), "dryRun": dry_run}, output)
        case "name":
            click.echo(outcome.batch_id)
        case _:
            click.echo(f"dataset/{dataset} batch {outcome.batch_id} {outcome.done}{dry}: {outcome.text()}")
