"""`lethe erasures`: list, show and verify the erasures of a table and their records."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from lethe.base.errors import InputError
from lethe.cli import evidence, storage_check
from lethe.cli.evidence import Known, Problem, digest_problems, known_erasures, named, problems, read
from lethe.cli.opening import Opened, open_table
from lethe.cli.options import batch_column_option, json_option, table_argument
from lethe.cli.output import moment, print_json, print_pairs, print_table, progress, working
from lethe.erasure.signature import SUFFIX, PublicKey, load_public_key
from lethe.restatement.values_digest import KEY_BYTES_AT_LEAST

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def erasures() -> None:
    """What had to go from the storage: how far it is, and the evidence that it is gone."""


@erasures.command("list")
@table_argument
@json_option
@batch_column_option
def list_(table: str, as_json: bool, batch_column: str) -> None:
    """List the erasures that the ledger knows, open ones first."""
    with working("loading the ledger"):
        found = known_erasures(open_table(table, batch_column).ledger())
    if as_json:
        print_json([_document(k) for k in found])
        return
    print_table(
        ("RESTATEMENT", "OPERATION", "STATE", "DUE", "VERIFIED", "TICKET", "RECORD"),
        (
            (
                k.name,
                k.result.operation,
                _state(k),
                moment(k.owed.evict_by if k.owed else None),
                moment(k.outcome.verified_time if k.outcome else None),
                k.result.provenance.ticket if k.result.provenance else "",
                k.outcome.record.rpartition("/")[2] if k.outcome else "",
            )
            for k in found
        ),
    )


@erasures.command()
@table_argument
@click.argument("restatement")
@json_option
@batch_column_option
def show(table: str, restatement: str, as_json: bool, batch_column: str) -> None:
    """Show the record of one erasure; RESTATEMENT is namespace/name. With --json, the record itself.

    It is shown as it lies in the storage: `lethe erasures verify` says whether that is what Lethe wrote.
    """
    with working("reading the record"):
        opened = open_table(table, batch_column)
        erasure = _the_only(named(known_erasures(opened.ledger()), table, [restatement]), restatement)
        outcome = erasure.outcome
        found = read(opened, outcome.record) if outcome is not None else None
    if outcome is None or found is None:
        raise InputError(
            "NotVerified", f"the erasure {restatement} is {_state(erasure)}: there is no record of it yet."
        )
    if found.document is None:
        raise InputError("RecordUnreadable", f"{outcome.record} is not there, or is no JSON object.")
    if as_json:
        print_json(found.document)
        return
    asked, seen, files = (found.document.get(k) or {} for k in ("request", "verified", "restatement"))
    signed = evidence.content_of(opened, f"{outcome.record}{SUFFIX}") is not None
    print_pairs(
        [
            ("record", outcome.record),
            ("sha256", outcome.record_sha256),
            ("signature", f"{outcome.record}{SUFFIX}" if signed else "none"),
            ("restatement", f"{erasure.name}, {files.get('operation')} by {files.get('named-by')}"),
            ("reason", str(asked.get("reason") or "")),
            ("ticket", str(asked.get("ticket") or "")),
            ("requested", str(asked.get("created-time") or "")),
            ("committed", str(files.get("committed-time") or "")),
            ("due", str(files.get("due-time") or "")),
            ("verified", f"{seen.get('time')} by run {seen.get('run')}"),
            ("files removed", f"{found.document.get('files-count')}, {found.document.get('files-bytes')} bytes"),
        ]
    )
    for text in found.document.get("not-covered") or ():
        click.echo(f"not covered    {text}")


@erasures.command()
@table_argument
@click.argument("restatements", nargs=-1)
@click.option(
    "--public-key",
    "key_files",
    type=_FILE,
    multiple=True,
    help="Every record must be signed by this ed25519 key (PEM), or by another one given.",
)
@click.option(
    "--storage", "storage", is_flag=True, help="Look whether the storage has what was erased; reads data files."
)
@click.option(
    "--values",
    "values_file",
    type=_FILE,
    help="Values, one a line. With --storage: search every object for them. With --digest-key: compare their digest.",
)
@click.option(
    "--digest-key",
    "digest_key_file",
    type=_FILE,
    help="Compare the keyed digests in the records: of the batches, or of the --values of one Erase by records.",
)
@json_option
@batch_column_option
@click.pass_context
def verify(
    context: click.Context,
    table: str,
    restatements: tuple[str, ...],
    key_files: tuple[Path, ...],
    storage: bool,
    values_file: Path | None,
    digest_key_file: Path | None,
    as_json: bool,
    batch_column: str,
) -> None:
    """Verify the records of erasures: of those named as namespace/name, or of all that are not open. Exit code 1 when
    something is wrong.

    Compares each record with the hash in the ledger, with the erasure that it must be of, and with its signature. --storage
    also lists every location of the table: none of the removed files is there, and no Parquet file holds rows of the erased
    batches. The values of an Erase by records are not kept: --values searches for those that you give. No value is printed.
    """
    if values_file is not None and not storage and digest_key_file is None:
        raise click.UsageError("--values needs --storage or --digest-key")
    if values_file is not None and digest_key_file is not None and len(restatements) != 1:
        raise click.UsageError("--values with --digest-key needs the one RESTATEMENT that erased them")
    digest_key = _digest_key(digest_key_file) if digest_key_file is not None else b""
    keys = [load_public_key(f.read_bytes(), str(f)) for f in key_files]
    values = _values(values_file) if values_file is not None else []
    with working("reading the records"):
        opened = open_table(table, batch_column)
        known = known_erasures(opened.ledger())
        chosen = named(known, table, restatements) if restatements else [k for k in known if k.outcome is not None]
        given = values_file.read_bytes() if values_file is not None else None
        found = [p for k in chosen for p in _of_record(opened, k, keys, digest_key, given)]
    notes = [] if keys else ["signatures were not verified: give --public-key"]
    if storage:
        more, unseen = _of_storage(opened, chosen, values)
        found, notes = [*found, *more], [*notes, *unseen]
    else:
        notes.append("the storage was not looked at: give --storage")
    if as_json:
        told = {
            "table": table,
            "erasures": [k.name for k in chosen],
            "problems": [asdict(p) for p in found],
            "notes": notes,
        }
        print_json({**told, "verified": not found})
    else:
        for p in found:
            click.echo(f"{p.code} {p.restatement}: {p.what}" if p.restatement else f"{p.code}: {p.what}")
        for note in notes:
            click.echo(f"note: {note}")
        verdict = f"{len(found)} problems" if found else "all as they say"
        click.echo(f"{table}: {len(chosen)} erasures: {verdict}")
    context.exit(1 if found else 0)


def _of_record(
    opened: Opened, erasure: Known, keys: Sequence[PublicKey], digest_key: bytes, values: bytes | None
) -> list[Problem]:
    outcome = erasure.outcome
    found = read(opened, outcome.record) if outcome is not None else evidence.Read(None, None)
    wrong = problems(opened, erasure, found, keys)
    if digest_key and found.document is not None:
        wrong += digest_problems(erasure, found, digest_key, values)
    return wrong


def _of_storage(opened: Opened, chosen: Sequence[Known], values: Sequence[str]) -> tuple[list[Problem], list[str]]:
    """What the storage has of the erasures, and what was not looked at."""
    found: list[Problem] = []
    with working("listing the storage"):
        listed = storage_check.list_locations(opened)
    found += (Problem("", "NotListed", f"{uri} cannot be looked at: {why}.") for uri, why in listed.unlisted.items())
    notes: list[str] = []
    if not listed.storage.tells_versions:
        notes.append("the storage does not tell of older versions of objects")
    other = sum(p.endswith((".orc", ".avro")) and "/metadata/" not in p for p in listed.own)
    if other:
        notes.append(f"{other} data files in ORC or Avro were not searched for batches")
    field_id = opened.facts.batch_field_id
    with progress() as bar:
        for erasure in chosen:
            outcome = erasure.outcome
            if outcome is None:
                continue
            document = read(opened, outcome.record).document or {}
            back = storage_check.files_back(listed, document)
            found += _back(erasure.name, "FileIsThere", "files that the record lists as removed", back)
            if not erasure.result.batch_ids or field_id is None:
                if not values:
                    notes.append(f"{erasure.name}: its values are not kept; give --values to search for them")
                continue
            task = bar.add_task(erasure.name, total=len(listed.data))
            column = storage_check.Column(field_id, opened.table.schema().find_column_name(field_id) or "")
            rows = storage_check.batches_back(listed, column, erasure.result.batch_ids, partial(bar.advance, task))
            found += _back(erasure.name, "BatchIsThere", "data files that hold rows of its batches", rows)
        if values:
            task = bar.add_task("values", total=len(listed.own))
            holding = storage_check.values_back(listed, values, partial(bar.advance, task))
            found += _back("", "ValueIsThere", "objects that hold one of the values", holding)
    return found, notes


def _back(restatement: str, code: str, what: str, paths: Sequence[str]) -> Iterable[Problem]:
    if not paths:
        return ()
    first = ", ".join(paths[: storage_check.NAMED_AT_MOST])
    rest = len(paths) - storage_check.NAMED_AT_MOST
    more = f" and {rest} more" if rest > 0 else ""
    return (Problem(restatement, code, f"the storage has {len(paths)} {what}: {first}{more}."),)


def _digest_key(path: Path) -> bytes:
    """Raises: InputError (InvalidKey)."""
    key = path.read_bytes()
    if len(key) < KEY_BYTES_AT_LEAST:
        raise InputError(
            "InvalidKey", f"{path} must hold a key of at least {KEY_BYTES_AT_LEAST} bytes, found {len(key)}."
        )
    return key


def _values(path: Path) -> list[str]:
    """Raises: InputError (InvalidValues)."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise InputError("InvalidValues", f"{path} is no text in UTF-8.") from None
    found = sorted({line.removesuffix("\r") for line in lines if line.strip()})
    if not found:
        raise InputError("InvalidValues", f"{path} holds no values. Write one on each line.")
    return found


def _the_only(found: Sequence[Known], name: str) -> Known:
    if len(found) > 1:
        keys = ", ".join(k.key for k in found)
        raise InputError("AmbiguousErasure", f"{name!r} was created {len(found)} times; name one of the keys: {keys}.")
    return found[0]


def _state(erasure: Known) -> str:
    if erasure.owed is None:
        return "verified"
    if not erasure.owed.is_purged:
        return "rows in table"
    return "blocked" if erasure.owed.blockers_count else "not verified"


def _document(erasure: Known) -> dict[str, Any]:
    outcome, owed, asked = erasure.outcome, erasure.owed, erasure.result.provenance
    return {
        "restatement": erasure.name,
        "key": erasure.key,
        "operation": erasure.result.operation,
        "state": _state(erasure),
        "dueTime": owed.evict_by if owed else None,
        "blockedBy": [str(b) for b in owed.blockers] if owed else [],
        "reason": (asked.reason if asked else "") or None,
        "ticket": (asked.ticket if asked else "") or None,
        "verifiedTime": outcome.verified_time if outcome else None,
        "record": outcome.record if outcome else None,
        "recordSha256": outcome.record_sha256 if outcome else None,
    }
