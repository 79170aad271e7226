"""`lethe erasures` lists, shows and verifies the erasures of a table and their records. I/O: reads."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from lethe.base.errors import InputError
from lethe.base.names import lines_of
from lethe.cli.evidence import (
    GivenEvidence,
    ListedErasure,
    TableEvidence,
    content_of,
    known_erasures,
    named,
    read_record,
    verify_record,
    verify_request,
    verify_storage,
)
from lethe.cli.opening import RECORD_ENDING, open_table, table_or_dataset
from lethe.cli.output import (
    json_option,
    output_option,
    print_document,
    print_json,
    print_pairs,
    print_table,
    time_text,
    working,
)
from lethe.erasure.record import SUFFIX, load_known_keys
from lethe.restatement.plan import KEY_BYTES_AT_LEAST

_HEADERS: Final = ("RESTATEMENT", "OPERATION", "STATE", "DUE", "VERIFIED", "TICKET", "RECORD")
_WIDE: Final = ("BLOCKED BY", "REASON", "SHA256")
_OPTIONAL: Final = ("RECORD", "OPERATION", "TICKET", "VERIFIED", "DUE")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def erasures() -> None:
    """Inspect the erasures of a table: their progress, and the evidence that the bytes are gone."""


@erasures.command("list")
@table_or_dataset
@output_option
@json_option
def list_(table: str, output: str, as_json: bool, batch_column: str) -> None:
    """List the erasures in the ledger of a table, or of the table of a Dataset, open ones first."""
    with working("loading the ledger"):
        listed = known_erasures(open_table(table, batch_column).ledger())
    match "json" if as_json else output:
        case "json" | "yaml" as form:
            print_document([_document(k) for k in listed], form)
        case "name":
            click.echo("".join(f"{k.name}\n" for k in listed), nl=False)
        case form:
            wide = form == "wide"
            headers = (*_HEADERS, *(_WIDE if wide else ()))
            print_table(headers, (_row(k, wide) for k in listed), optional=() if wide else _OPTIONAL)


def _row(erasure: ListedErasure, wide: bool) -> list[str]:
    outcome, pending, request = erasure.outcome, erasure.pending, erasure.result.provenance
    row = [erasure.name, erasure.result.operation or "", _state(erasure)]
    row += [time_text(pending.evict_by if pending else None), time_text(outcome.verified_time if outcome else None)]
    row += [request.ticket if request else "", outcome.record if outcome else ""]
    blockers = ", ".join(str(b) for b in pending.blockers) if pending else ""
    return (
        [*row, blockers, request.reason if request else "", outcome.record_sha256 if outcome else ""] if wide else row
    )


def _document(erasure: ListedErasure) -> dict[str, Any]:
    outcome, pending, request = erasure.outcome, erasure.pending, erasure.result.provenance
    return {
        "restatement": erasure.name,
        "key": erasure.key,
        "operation": erasure.result.operation or "",
        "state": _state(erasure),
        "dueTime": pending.evict_by if pending else None,
        "blockedBy": [str(b) for b in pending.blockers] if pending else [],
        "reason": (request.reason if request else "") or None,
        "ticket": (request.ticket if request else "") or None,
        "verifiedTime": outcome.verified_time if outcome else None,
        "record": outcome.record if outcome else None,
        "recordSha256": outcome.record_sha256 if outcome else None,
    }


@erasures.command()
@table_or_dataset
@click.argument("restatement")
@json_option
def show(table: str, restatement: str, as_json: bool, batch_column: str) -> None:
    """Show the record of one erasure. RESTATEMENT is namespace/name. With --json, print the record itself.

    The command does not verify the record. To do that, use `lethe erasures verify`.
    """
    with working("reading the record"):
        opened = open_table(table, batch_column)
        erasure = _the_only(named(known_erasures(opened.ledger()), table, [restatement]), restatement)
        outcome = erasure.outcome
        record = read_record(opened, outcome.record) if outcome is not None else None
    if outcome is None or record is None:
        raise InputError("NotVerified", f"erasure {restatement} has no record yet. Its state: {_state(erasure)}.")
    if record.document is None:
        raise InputError("RecordUnreadable", f"{outcome.record} is missing, or is not a JSON object.")
    if as_json:
        print_json(record.document)
        return
    request, verified, files = (record.document.get(k) or {} for k in ("request", "verified", "restatement"))
    signed = content_of(opened, f"{outcome.record}{SUFFIX}") is not None
    print_pairs(
        [
            ("record", outcome.record),
            ("sha256", outcome.record_sha256),
            ("signature", f"{outcome.record}{SUFFIX}" if signed else "none"),
            ("restatement", f"{erasure.name}, {files.get('operation')} by {files.get('named-by')}"),
            *(("redacted", text) for text in _redacted_columns(files)),
            ("reason", str(request.get("reason") or "")),
            ("ticket", str(request.get("ticket") or "")),
            ("requested", str(request.get("created-time") or "")),
            ("committed", str(files.get("committed-time") or "")),
            ("due", str(files.get("due-time") or "")),
            ("verified", f"{verified.get('time')} by run {verified.get('run')}"),
            ("files removed", f"{record.document.get('files-count')}, {record.document.get('files-bytes')} bytes"),
            *(("not covered", str(text)) for text in record.document.get("not-covered") or ()),
        ]
    )


def _redacted_columns(restatement: Mapping[str, Any]) -> list[str]:
    """What the record of a Redact says about its columns, and the key of its hashes."""
    redaction = restatement.get("redaction") or {}
    columns = [f"{c.get('column')}: {c.get('method')}" for c in redaction.get("columns") or ()]
    key = redaction.get("hash-key")
    return [*columns, *([f"hashed with the key {key}"] if key else [])]


def _the_only(found: Sequence[ListedErasure], name: str) -> ListedErasure:
    if len(found) > 1:
        keys = ", ".join(k.key for k in found)
        raise InputError(
            "AmbiguousErasure", f"{name!r} was created {len(found)} times. Give one of these keys instead: {keys}."
        )
    return found[0]


@erasures.command()
@table_or_dataset
@click.argument("restatements", nargs=-1)
@click.option(
    "--public-key",
    "key_files",
    type=_FILE,
    multiple=True,
    help="Verify the signatures with the ed25519 keys in this file (PEM). Repeatable: each record must be signed by one of "
    "the keys, so give every key that ever signed.",
)
@click.option(
    "--storage", is_flag=True, help="Search the storage for what was erased. Lists all locations and reads data files."
)
@click.option(
    "--values",
    "values_files",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    multiple=True,
    help="A file of values, one per line, or - for the standard input. With --storage: search every object for them. With "
    "--digest-key: compare their digest. Repeatable: one file for each condition of the Erase, in their order.",
)
@click.option(
    "--digest-key",
    "digest_key_file",
    type=_FILE,
    help="Verify the keyed digests in the records: of the batches, or of the --values of one Erase by records.",
)
@json_option
@click.pass_context
def verify(
    context: click.Context,
    table: str,
    restatements: tuple[str, ...],
    as_json: bool,
    batch_column: str,
    **files: Any,
) -> None:
    """Verify the records of erasures: of those named as namespace/name, or of all that are not open.

    The record of an erasure of a subject from several tables is given as restatement/NAME, or by its file or URI. The records of
    all its tables are then verified, too.

    Exit code 1 if there is a problem.

    Compares each record with its hash in the ledger, with its erasure, and with its signature. With --storage, also lists every
    location of the table: the removed files must be gone, and no data file may contain rows of the erased batches, whatever its
    name. Lethe does not keep the values of an Erase by records: give them with --values to search every object for them. Objects
    that cannot be searched are problems, too. The output contains no values.
    """
    evidence = _given(len(restatements), **files)
    with working("reading the records"):
        tables = (
            verify_request(table, evidence)
            if table.endswith(RECORD_ENDING)
            else [_verified(table, restatements, batch_column, evidence)]
        )
    failures = [p for t in tables for p in t.problems]
    notes = [note for t in tables for note in t.notes]
    notes += [] if evidence.public_keys else ["signatures were not verified: give --public-key"]
    notes += [] if evidence.storage else ["the storage was not searched: give --storage"]
    if as_json:
        print_json(
            {
                "table": table,
                "erasures": [name for t in tables for name in t.restatements],
                "problems": [asdict(p) for p in failures],
                "notes": notes,
                "verified": not failures,
            }
        )
    else:
        for p in failures:
            click.echo(f"{p.code} {p.restatement}: {p.what}" if p.restatement else f"{p.code}: {p.what}")
        for note in notes:
            click.echo(f"note: {note}")
        for t in tables:
            verdict = f"{len(t.problems)} problems" if t.problems else "no problems"
            what = (
                "the record"
                if t.table == table and table.endswith(RECORD_ENDING)
                else f"{len(t.restatements)} erasures"
            )
            click.echo(f"{t.table}: {what}: {verdict}")
    context.exit(1 if failures else 0)


def _verified(table: str, restatements: Sequence[str], batch_column: str, evidence: GivenEvidence) -> TableEvidence:
    """Verify erasures of one table."""
    opened = open_table(table, batch_column)
    listed = known_erasures(opened.ledger())
    chosen = named(listed, table, restatements) if restatements else [k for k in listed if k.outcome is not None]
    failures, notes = [p for k in chosen for p in verify_record(opened, k, evidence)], list[str]()
    if evidence.storage:
        in_storage, notes = verify_storage(opened, chosen, evidence.values)
        failures += in_storage
    return TableEvidence(table, tuple(k.name for k in chosen), tuple(failures), tuple(notes))


def _given(
    restatements_count: int,
    key_files: tuple[Path, ...],
    storage: bool,
    values_files: Sequence[Path],
    digest_key_file: Path | None,
) -> GivenEvidence:
    """Read the files that the options name.

    Raises:
        UsageError: The arguments do not go together.
        InputError: InvalidKey, InvalidValues.
    """
    if values_files and not storage and digest_key_file is None:
        raise click.UsageError("--values needs --storage or --digest-key")
    if values_files and digest_key_file is not None and restatements_count != 1:
        raise click.UsageError(
            "--values with --digest-key needs exactly one RESTATEMENT: the one that erased the values"
        )
    digest_key = _digest_key(digest_key_file) if digest_key_file is not None else b""
    keys = [key for f in key_files for key in load_known_keys(f.read_bytes(), str(f))]
    contents = [_content_of_values(f) for f in values_files]
    values = {v for f, content in zip(values_files, contents, strict=True) for v in _values(content, str(f))}
    return GivenEvidence(keys, storage, sorted(values), contents, digest_key)


def _digest_key(path: Path) -> bytes:
    """Read the key of digests from a file.

    Raises:
        InputError: InvalidKey.
    """
    key = path.read_bytes()
    if len(key) < KEY_BYTES_AT_LEAST:
        raise InputError(
            "InvalidKey", f"{path} must contain a key of at least {KEY_BYTES_AT_LEAST} bytes, found {len(key)}."
        )
    return key


def _content_of_values(path: Path) -> bytes:
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()


def _values(content: bytes, path: str) -> list[str]:
    """Parse the values of a file.

    Raises:
        InputError: InvalidValues.
    """
    try:
        lines = lines_of(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError("InvalidValues", f"{path} is not UTF-8 text.") from None
    values = sorted({line for line in lines if line.strip()})
    if not values:
        raise InputError("InvalidValues", f"{path} contains no values. Write one value per line.")
    return values


def _state(erasure: ListedErasure) -> str:
    if erasure.pending is None:
        return "verified"
    if erasure.pending.is_held:
        return "blocked"
    if not erasure.pending.is_purged:
        return "rows in table"
    return "blocked" if erasure.pending.blockers_count else "not verified"
