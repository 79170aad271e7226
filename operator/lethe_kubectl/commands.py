"""The commands on resources. I/O."""

import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

import click
from lethe.base.errors import InputError, TransientError
from lethe.cli.output import output_option, print_document, print_table, print_text, watch_option, watched
from lethe.contract.settings import Operation
from lethe.kube import CONFIG_MAPS, DATASETS, RESTATEMENTS, SECRETS, AlreadyExists, Away, KubeError
from lethe.restatement.unknown import UNKNOWN_BATCHES
from lethe_operator.resources import manifests
from lethe_operator.resources.manifests import Note, SubjectValues

from lethe_kubectl import lookup
from lethe_kubectl import status as run_rows
from lethe_kubectl.dry_run import Uploads, print_plan, require_known_batches
from lethe_kubectl.id_lists import config_map, create_list, put_list, too_long_to_print, with_list
from lethe_kubectl.logs import follow, same_as
from lethe_kubectl.lookup import (
    KINDS,
    ErasingCommand,
    batch_note_options,
    change_options,
    erase_options,
    find,
    note_options,
    one,
    target_options,
)
from lethe_kubectl.replacement import ReplacementPlace, put_replacement
from lethe_kubectl.selection import Selection, require_some, selected, selection_options
from lethe_kubectl.status import HEADERS, OPTIONAL, WIDE, WaitGoal, rows
from lethe_kubectl.subjects import (
    SubjectOptions,
    named_identities,
    requester,
    require_declared,
    selector_of,
    stored_values,
    subject_options,
    values_of,
)
from lethe_kubectl.target import Choice, Connection, connected
from lethe_kubectl.vacuum import approve_vacuum
from lethe_kubectl.why import Related
from lethe_kubectl.why import why as answer_why

_KEY = "values"
EXIT_FAILURES: Final = 1


@click.command()
@watch_option
@target_options
@output_option
def status(choice: Choice, output: str, watch: bool) -> None:
    """Show Datasets, VacuumPolicies, and Restatements that have not ended or failed in the last day.

    Also says which server was asked, and counts what failed in the last day: Restatements, and the runs that the statuses still
    have. Exit code 1 if something did.
    """
    with connected(choice) as at:
        shown = watched(lambda: _resources(at), lambda found: _show_status(at, found, output), watch)
    if run_rows.failures(shown, datetime.now(UTC)):
        sys.exit(EXIT_FAILURES)


def _resources(at: Connection) -> list[tuple[str, dict[str, Any]]]:
    """Kinds and resources: all of them, because one Restatement may have repeated another one."""
    kinds = ("dataset", "vacuumpolicy", "restatement")
    return [(kind, document) for kind in kinds for document in at.kube.list(KINDS[kind], at.namespace)]


def _show_status(at: Connection, found: list[tuple[str, dict[str, Any]]], output: str) -> None:
    wide, now = output == "wide", datetime.now(UTC)
    resources = found if wide else run_rows.need_attention(found, now)
    match output:
        case "json" | "yaml":
            print_document({"apiVersion": "v1", "kind": "List", "items": [d for _, d in resources]}, output)
        case "name":
            click.echo("".join(f"{k}/{d['metadata']['name']}\n" for k, d in resources), nl=False)
        case _:
            click.echo(f"{at.place.name}, namespace {at.namespace}", err=True)
            headers, optional = (HEADERS + WIDE, ()) if wide else (HEADERS, OPTIONAL)
            print_table(headers, rows(resources, now, wide), optional=optional)
            failed = run_rows.failures(found, now)
            if failed:
                print_text(str(failed))
                what = f"why restatement/{failed.restatements[0]}" if failed.restatements else f"logs {failed.runs[0]}"
                click.echo(f"next: {at.place.run(what)}")


@click.command()
@click.argument("dataset", required=False, shell_complete=lookup.datasets)
@click.option("--active", is_flag=True, help="Only runs that have not ended.")
@watch_option
@target_options
@output_option
def runs(choice: Choice, dataset: str | None, active: bool, output: str, watch: bool) -> None:
    """Show the runs of a DATASET, or of all: those at work and the last few of each kind, the newest first."""
    with connected(choice) as at:

        def load() -> list[run_rows.RunOfDataset]:
            datasets = [one(at, "dataset", dataset)] if dataset else at.kube.list(DATASETS, at.namespace)
            return run_rows.runs_of(datasets, active)

        watched(load, lambda found: _show_runs(found, output), watch)


def _show_runs(rows: Sequence[run_rows.RunOfDataset], output: str) -> None:
    match output:
        case "json" | "yaml":
            print_document({"runs": [run.to_document() for run in rows]}, output)
        case "name":
            click.echo("".join(f"{run.name}\n" for run in rows), nl=False)
        case _:
            wide = output == "wide"
            headers = run_rows.RUN_HEADERS + run_rows.WIDE_RUN_HEADERS if wide else run_rows.RUN_HEADERS
            optional = () if wide else run_rows.OPTIONAL_RUN_HEADERS
            print_table(headers, run_rows.run_rows(rows, datetime.now(UTC), wide), ("ATTEMPT",), optional)


@click.command()
@click.argument("resource", nargs=-1, required=True, shell_complete=lookup.resources)
@target_options
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text")
def why(choice: Choice, resource: tuple[str, ...], output: str) -> None:
    """Say what a RESOURCE waits for, and the next command to run.

    RESOURCE is KIND/NAME, KIND NAME, or NAME. KIND is dataset, restatement or vacuumpolicy.
    """
    if len(resource) > 2:
        raise click.UsageError("Name one resource: KIND/NAME, KIND NAME, or NAME.")
    with connected(choice) as at:
        kind, document = find(at, resource)
        name = ((document.get("spec") or {}).get("datasetRef") or {}).get("name")
        dataset = next((d for d in at.kube.list(DATASETS, at.namespace) if d["metadata"]["name"] == name), None)
        answer = answer_why(kind, document, Related(dataset), at.place)
    if output in ("json", "yaml"):
        print_document({"lines": list(answer.lines), "next": answer.command}, output)
        return
    for line in answer.lines:
        print_text(line)
    if answer.command:
        click.echo(f"next: {answer.command}")


@click.command()
@click.argument("dataset", required=False, shell_complete=lookup.datasets)
@click.argument("batch", nargs=-1)
@click.option(
    "--everywhere",
    is_flag=True,
    help="With --reference: in all Datasets of the namespace that have batches of the run.",
)
@selection_options
@batch_note_options
@change_options
@target_options
def revert(
    dataset: str | None, batch: tuple[str, ...], everywhere: bool, selection: Selection, note: Note, **how: Any
) -> None:
    """Delete batches of a DATASET. `lethe undo` takes it back until a vacuum has purged the rows.

    With --reference, deletes all batches that a DAG run, a load or an agent delivered. With --everywhere, makes one Restatement
    for each Dataset that has some.
    """
    if everywhere:
        if dataset or not selection.reference:
            raise click.UsageError("--everywhere needs --reference, and no DATASET.")
        selected(selection, Operation.REVERT, "", batch, how)
        _revert_everywhere(selection.reference, note, how)
        return
    if not dataset:
        raise click.UsageError("Name a DATASET, or --everywhere with --reference.")
    require_some(batch, selection)
    batch = selected(selection, Operation.REVERT, dataset, batch, how)
    _create(manifests.revert(dataset, batch, note, selection.reference), **how)


def _revert_everywhere(reference: str, note: Note, how: Mapping[str, Any]) -> None:
    """Revert what a run delivered, by a Restatement for each Dataset that has some of it, as far as this machine can tell.

    For a Dataset whose table this machine cannot read, the Restatement's run decides.

    Raises:
        InputError: `UnknownBatches`, if no Dataset has a batch of the run.
    """
    found: list[dict[str, Any]] = []
    with connected(how["choice"]) as at:
        datasets = [str(d["metadata"]["name"]) for d in at.kube.list(DATASETS, at.namespace)]
        for name in sorted(datasets):
            named = replace(note, name=f"{note.name}-{name}") if note.name else note
            document = manifests.revert(name, (), named, reference)
            try:
                require_known_batches(at, document)
            except InputError as e:
                if e.reason != UNKNOWN_BATCHES:
                    raise
                continue
            found.append(document)
    if not found:
        raise InputError(
            UNKNOWN_BATCHES,
            f"none of the {len(datasets)} Datasets in namespace {at.namespace} has a batch that {reference!r} delivered, and "
            "that is not taken back yet. `lethe batches` with -o wide shows the references of batches.",
        )
    if how["output"] in ("yaml", "json"):
        print_document({"apiVersion": "v1", "kind": "List", "items": found}, how["output"])
        return
    for document in found:
        _create(document, **how)


@click.command()
@click.argument("dataset", shell_complete=lookup.datasets)
@click.argument("batch", nargs=-1)
@click.option("--plan", "digest", default="", help="Of a vacuum: approve only the plan with this digest. Default: ask.")
@selection_options
@note_options
@change_options
@target_options
def approve(
    dataset: str, batch: tuple[str, ...], digest: str, selection: Selection, note: Note, choice: Choice, **how: Any
) -> None:
    """Approve batches of a DATASET that checks hold, so that the next consolidation promotes them.

    Without batches: approve its planned vacuum. Prints the plan, and asks unless --plan names it.
    """
    if not batch and not selection:
        approve_vacuum(dataset, digest, choice, **how)
        return
    if digest:
        raise click.UsageError("Name batches or a --plan, not both.")
    batch = selected(selection, Operation.APPROVE, dataset, batch, {"choice": choice, **how})
    _create(manifests.approve(dataset, batch, note, selection.reference), choice=choice, **how)


@click.command()
@click.argument("restatement", shell_complete=lookup.restatements)
@note_options
@change_options
@target_options
def undo(restatement: str, note: Note, choice: Choice, **how: Any) -> None:
    """Take a Revert back, by the name of its RESTATEMENT."""
    with connected(choice) as at:
        undone = one(at, "restatement", restatement)
    if "datasetRef" not in undone["spec"]:
        raise InputError(
            "NotUndoable", f"restatement/{restatement} erases or redacts a subject, which cannot be undone."
        )
    _create(manifests.undo(undone["spec"]["datasetRef"]["name"], restatement, note), choice=choice, **how)


@click.command()
@click.argument("dataset", shell_complete=lookup.datasets)
@click.argument("batch", nargs=-1)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Upload the files of the new batch from this local folder.",
)
@click.option(
    "--with",
    "new_batch",
    default="",
    help="The id of the new batch. It must never have been used. With --from, it is by default made from the replaced batch and "
    "the contents of the files.",
)
@click.option(
    "--uri",
    default="",
    help="The folder with the files of the new batch, outside the buffer. With --from, a folder beside the buffer by default.",
)
@click.option("--no-check", is_flag=True, help="With --from: do not read the files before the upload.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    help="A column of the key, or a field such as customer.id: replace rows of the same key. Repeatable.",
)
@selection_options
@batch_note_options
@change_options
@target_options
def replay(
    dataset: str,
    batch: tuple[str, ...],
    source: Path | None,
    new_batch: str,
    uri: str,
    no_check: bool,
    keys: tuple[str, ...],
    selection: Selection,
    note: Note,
    **how: Any,
) -> None:
    """Replace batches of a DATASET, or rows of the same key, with a new batch in one commit.

    With --from, first checks and uploads the new batch as `lethe put` does, with your own credentials. An interrupted command
    can be repeated: the same files are the same batch.
    """
    if source is None and not (new_batch and uri):
        raise click.UsageError("Name the new batch by --with and --uri, or its local folder by --from.")
    if not batch and not selection and not keys:
        raise click.UsageError("Name batches to replace, or columns of a key with --key.")
    batch = selected(selection, Operation.REPLAY, dataset, batch, how)
    if source is not None and selection.reference and not new_batch:
        raise click.UsageError("--reference with --from needs the id of the new batch: --with.")
    of = selection.reference
    if source is not None:
        changes_nothing = how["dry_run"] or how["output"] in ("yaml", "json")
        place = ReplacementPlace(new_batch, uri)
        new = put_replacement(how["choice"], dataset, source, batch, place, not no_check, changes_nothing)
        _create(
            manifests.replay(dataset, batch, new.batch_id, new.uri, keys, note, of), uploads={new.uri: new.files}, **how
        )
        return
    _create(manifests.replay(dataset, batch, new_batch, uri, keys, note, of), **how)


@click.command(cls=ErasingCommand)
@click.argument("dataset", required=False, shell_complete=lookup.datasets)
@click.argument("batch", nargs=-1)
@click.option(
    "--column",
    default="",
    help="Erase the records with certain values in this column, or field such as customer.email.",
)
@subject_options("Erase a subject from")
@selection_options
@batch_note_options
@erase_options
@target_options
def erase(
    dataset: str | None,
    batch: tuple[str, ...],
    column: str,
    everywhere: bool,
    subjects: tuple[str, ...],
    selector: str,
    values: IO[bytes] | None,
    values_from: str,
    selection: Selection,
    note: Note,
    **how: Any,
) -> None:
    """Erase batches of a DATASET, or records, and prove that their bytes are gone. With --everywhere: from all Datasets.

    --values puts the values of records into a new Secret, which belongs to the Restatement and is deleted with it, or when an
    erasure from all Datasets is verified. A shell keeps its history, so values on the command line stay there.
    """
    asked = SubjectOptions(everywhere, subjects, selector, values, values_from)
    if asked.are_meant(bool(dataset or column or selection or note.allow_unknown), bool(dataset)):
        _create_request(asked, note, None, how)
        return
    assert dataset is not None
    if bool(batch or selection) == bool(column):
        raise click.UsageError("Name batches, or a --column with --values or --values-from.")
    if not column:
        if values is not None or values_from:
            raise click.UsageError("--values and --values-from need --column.")
        batch = selected(selection, Operation.ERASE, dataset, batch, how)
        _create(manifests.erase_batches(dataset, batch, note, selection.reference), **how)
        return
    secret, key, new = _values(values, values_from, how)
    _create(manifests.erase_records(dataset, column, secret, key, note), secret=new, **how)


@click.command(cls=ErasingCommand)
@click.argument("dataset", required=False, shell_complete=lookup.datasets)
@click.argument("batch", nargs=-1)
@click.option(
    "--set",
    "columns",
    multiple=True,
    required=True,
    help=f"What to write into a column or field: {manifests.REDACTION_FORM}. A hash is the HMAC-SHA-256 of the value with the "
    "key in a Secret. Repeatable.",
)
@click.option(
    "--column",
    default="",
    help="Redact the records with certain values in this column, or field such as customer.id.",
)
@subject_options("Redact a subject in")
@selection_options
@note_options
@erase_options
@target_options
def redact(
    dataset: str | None,
    batch: tuple[str, ...],
    columns: tuple[str, ...],
    column: str,
    everywhere: bool,
    subjects: tuple[str, ...],
    selector: str,
    values: IO[bytes] | None,
    values_from: str,
    selection: Selection,
    note: Note,
    **how: Any,
) -> None:
    """Replace values of columns in records or batches of a DATASET, and prove that the bytes of the old ones are gone.

    A Redact cannot be undone. --values puts the values that name the records into a new Secret, as `lethe erase` does. With
    --everywhere: in the same columns of all Datasets.
    """
    if selection.reference:
        raise click.UsageError("A redact takes no --reference. Name the batches by their ids.")
    try:
        redaction = manifests.redaction(columns)
    except ValueError as e:
        raise click.UsageError(f"--set: {e}.") from None
    asked = SubjectOptions(everywhere, subjects, selector, values, values_from)
    if asked.are_meant(bool(dataset or column or selection), bool(dataset)):
        _create_request(asked, note, redaction, how)
        return
    assert dataset is not None
    if bool(batch or selection) == bool(column):
        raise click.UsageError("Name batches, or a --column with --values or --values-from.")
    if not column:
        if values is not None or values_from:
            raise click.UsageError("--values and --values-from need --column.")
        batch = selected(selection, Operation.REDACT, dataset, batch, how)
        _create(manifests.redact_batches(dataset, batch, redaction, note), **how)
        return
    secret, key, new = _values(values, values_from, how)
    _create(manifests.redact_records(dataset, column, secret, key, redaction, note), secret=new, **how)


def _values(values: IO[bytes] | None, values_from: str, how: Mapping[str, Any]) -> tuple[str, str, "NewSecret | None"]:
    """The name of the Secret with the values that name records, the key in it, and the Secret; None: it is there already.

    Raises:
        InputError: `UnreadableFile`, `NoValues`.
        click.UsageError: The options do not name values, or would print them.
    """
    if (values is None) == (not values_from):
        raise click.UsageError("--column needs one of --values and --values-from.")
    if values is None:
        secret, _, key = values_from.partition("/")
        if not key:
            raise click.UsageError("--values-from is SECRET/KEY.")
        return secret, key, None
    _require_no_values_for_git(how)
    content = _read_values(values)
    if not content.strip():
        raise InputError("NoValues", "the file of --values has no value. Write one value per line.")
    new = NewSecret({_KEY: content})
    return new.name, _KEY, new


def _create_request(
    asked: SubjectOptions, note: Note, redaction: Mapping[str, Any] | None, how: Mapping[str, Any]
) -> None:
    """Create the Restatement of a subject.

    Args:
        redaction: None: its rows are erased.
    """
    identities, labels = named_identities(asked.subjects), selector_of(asked.selector)
    if asked.values_from:
        if asked.values is not None:
            raise click.UsageError("Use one of --values and --values-from.")
        of = stored_values(identities, asked.values_from)
        _create(manifests.subject_request(of, labels, note, redact=redaction), **how)
        return
    _require_no_values_for_git(how)
    content = values_of(identities, _read_values(asked.values) if asked.values is not None else None)
    new = NewSecret(content)
    of = tuple(SubjectValues(name, new.name, name) for name in content)
    _create(manifests.subject_request(of, labels, note, delete_values=True, redact=redaction), secret=new, **how)


def _require_no_values_for_git(how: Mapping[str, Any]) -> None:
    if how["output"] in ("yaml", "json"):
        raise click.UsageError(
            "Git must not contain the values: use --values-from with a Secret that is in the cluster."
        )


def _read_values(file: IO[bytes]) -> str:
    try:
        return file.read().decode("utf-8-sig")
    except (UnicodeDecodeError, OSError):
        raise InputError("UnreadableFile", "the file of --values cannot be read as UTF-8 text.") from None


@dataclass(frozen=True)
class NewSecret:
    """A Secret with values of records, which belongs to a Restatement."""

    values: Mapping[str, str] = field(repr=False)
    """The values of each key, one per line."""
    # Random: a name made from the values would help to guess them.
    name: str = field(default_factory=lambda: f"erase-{secrets.token_hex(6)}")


def _create(
    document: dict[str, Any],
    choice: Choice,
    output: str | None,
    wait: bool | str | None,
    timeout: int,
    dry_run: bool,
    secret: NewSecret | None = None,
    uploads: Uploads = MappingProxyType({}),
) -> None:
    """Create a Restatement, or print it. The same Restatement again is no error."""
    document, id_list = with_list(document)
    list_map = config_map(document, id_list)
    if output in ("yaml", "json"):
        if id_list and list_map is None:
            raise too_long_to_print(id_list)
        both = {"apiVersion": "v1", "kind": "List", "items": [list_map, document]}
        print_document(document if list_map is None else both, output)
        return
    name = document["metadata"]["name"]
    with connected(choice) as at:
        if "subject" in document["spec"]:
            document = _requested(at, document)
        else:
            one(at, "dataset", document["spec"]["datasetRef"]["name"])
        if (document["spec"].get("batchIds") or "selector" in document["spec"]) and not dry_run:
            require_known_batches(at, document)
        if id_list and list_map is None:
            document = put_list(at, document, id_list, dry_run)
        if secret is not None:
            _create_secret(at, secret, None)
        is_new = list_map is not None and create_list(at, list_map)
        try:
            created, done = at.kube.create(RESTATEMENTS, at.namespace, document), "created"
        except KubeError as e:
            is_again = isinstance(e, AlreadyExists) and secret is None
            # Without an answer the Restatement may exist, and then needs its list.
            if list_map is not None and is_new and not is_again and not dry_run and not isinstance(e, Away):
                with suppress(KubeError):  # why there is no Restatement matters more
                    at.kube.delete(CONFIG_MAPS, at.namespace, list_map["metadata"]["name"])
            if not is_again:
                raise
            created, done = at.kube.get(RESTATEMENTS, at.namespace, name), "unchanged"
            same_as(created, document)
        if secret is not None and not dry_run:
            _create_secret(at, secret, created)
        if list_map is not None and not dry_run:
            owner = {"ownerReferences": [manifests.owner_reference(created)]}
            at.kube.patch(CONFIG_MAPS, at.namespace, list_map["metadata"]["name"], {"metadata": owner})
        if dry_run and output != "name":
            print_plan(at, *([] if list_map is None else [list_map]), document, uploads=uploads)
            return
        click.echo(f"restatement/{name}" if output == "name" else f"restatement/{name} {done}")
        if output == "name":
            return
        if wait:
            follow(at, name, timeout, WaitGoal(wait) if isinstance(wait, str) else WaitGoal.END)
        else:
            click.echo(f"next: {at.place.run(f'why restatement/{name}')}", err=True)


def _requested(at: Connection, document: dict[str, Any]) -> dict[str, Any]:
    """The Restatement of a subject with the user who creates it.

    Raises:
        InputError: `UnknownIdentity`.
    """
    require_declared(at, document["spec"])
    user = requester(at.kube)
    annotations = user.annotations if user is not None else {}
    return {**document, "metadata": {**document["metadata"], "annotations": annotations}}


def _create_secret(at: Connection, secret: NewSecret, owner: Mapping[str, Any] | None) -> None:
    """Create the Secret of a Restatement. It comes after that, so that no values are left without an owner.

    Args:
        owner: The Restatement; None: only ask whether the Secret may be created.

    Raises:
        TransientError: `SecretNotCreated`.
        KubeError: The API server would not create it.
    """
    document = manifests.values_secret(secret.name, secret.values, owner)
    try:
        at.kube.create(SECRETS, at.namespace, document, dry_run=owner is None)
    except KubeError as e:
        if owner is not None:
            raise TransientError(
                "SecretNotCreated",
                f"the Secret {secret.name} with the values could not be created ({e.status} {e.reason}), and "
                f"restatement/{owner['metadata']['name']} waits for it. Delete that, and try again.",
            ) from None
        if e.status == 403:
            raise
        # The answer may repeat what was sent.
        raise type(e)(e.status, e.reason, f"POST: the Secret {secret.name} with the values was not created") from None
