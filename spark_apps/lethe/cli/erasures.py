"""`lethe erasures` lists, shows and verifies the erasures of a table and their records.

Verifies the evidence of an erasure: its ledger entry, its record, and the signature of the record. I/O: reads.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from pydantic import ValidationError

from lethe.base.errors import InputError
from lethe.cli import storage_check
from lethe.cli.opening import Opened, open_table, table_or_dataset
from lethe.cli.output import (
    json_option,
    output_option,
    print_document,
    print_json,
    print_pairs,
    print_table,
    progress,
    time_text,
    working,
)
from lethe.contract.result import ErasureOutcome, RequestResult
from lethe.erasure.record import FORMAT_VERSION, SUFFIX, PublicKey, Statement, canonical, fault, load_known_keys
from lethe.ledger.ledger import Ledger
from lethe.ledger.tombstone import Erasure
from lethe.restatement.plan import KEY_BYTES_AT_LEAST, name_of, recalled, values_digest

CANONICAL_SINCE = 2
"""The format version since which records are canonical."""

_HEADERS: Final = ("RESTATEMENT", "OPERATION", "STATE", "DUE", "VERIFIED", "TICKET", "RECORD")
_WIDE: Final = ("BLOCKED BY", "REASON", "SHA256")
_OPTIONAL: Final = ("RECORD", "OPERATION", "TICKET", "VERIFIED", "DUE")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class ListedErasure:
    """An erasure in the ledger."""

    key: str
    """The key of its request."""
    result: RequestResult
    pending: Erasure | None = None
    """The open erasure; None: it is verified."""

    @property
    def name(self) -> str:
        """`namespace/name` of the Restatement, which may no longer exist in the cluster."""
        return name_of(self.key)

    @property
    def outcome(self) -> ErasureOutcome | None:
        """The outcome of a verified erasure; None: it is open."""
        erasure = self.result.erasure
        return erasure if erasure is not None and erasure.verified_time is not None else None


@dataclass(frozen=True)
class ErasureProblem:
    """Something wrong with an erasure."""

    restatement: str
    """Its name; empty: of no single Restatement."""
    code: str
    """CamelCase."""
    what: str
    """One sentence, without values of rows."""


@dataclass(frozen=True)
class StoredRecord:
    """An erasure record in the storage."""

    content: bytes | None = None
    """The bytes of the file; None: the file is missing."""
    document: Mapping[str, Any] | None = None
    """The parsed content; None: the file is missing, or not a JSON object."""


def known_erasures(ledger: Ledger) -> list[ListedErasure]:
    """The erasures whose requests are in the ledger, open ones first."""
    pending = {e.restatement: e for e in ledger.open_erasures}
    listed: list[ListedErasure] = []
    for key, entry in ledger.requests.items():
        try:
            result = recalled(entry)
        except ValidationError:
            continue  # a later version wrote it
        if key in pending or (result.erasure is not None and result.erasure.verified_time is not None):
            listed.append(ListedErasure(key, result, pending.get(key)))
    return sorted(listed, key=lambda k: (k.pending is None, k.name, k.key))


def named(erasures: Sequence[ListedErasure], table: str, names: Sequence[str]) -> list[ListedErasure]:
    """Select erasures by name or key.

    Raises:
        InputError: UnknownErasure.
    """
    listed: list[ListedErasure] = []
    for name in names:
        matches = [k for k in erasures if name in (k.name, k.key)]
        if not matches:
            raise InputError(
                "UnknownErasure",
                f"the ledger of {table} has no erasure {name!r}: expected namespace/name of a Restatement. `lethe erasures list "
                f"{table}` lists them.",
            )
        listed += (k for k in matches if k not in listed)
    return listed


def read_record(opened: Opened, uri: str) -> StoredRecord:
    """Read an erasure record.

    Raises:
        Exception: What the storage raises.
    """
    content = content_of(opened, uri)
    try:
        document = json.loads(content) if content is not None else None
    except ValueError:
        document = None
    return StoredRecord(content, document if isinstance(document, dict) else None)


def content_of(opened: Opened, uri: str) -> bytes | None:
    """The content of a file; None: it does not exist.

    Raises:
        Exception: What the storage raises.
    """
    try:
        with opened.table.io.new_input(uri).open() as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def problems(
    opened: Opened, erasure: ListedErasure, found: StoredRecord, keys: Sequence[PublicKey]
) -> list[ErasureProblem]:
    """Verify the evidence of an erasure.

    Args:
        keys: One of them must have signed the record. None given: skip the signature.
    """
    outcome = erasure.outcome
    if outcome is None or outcome.verified_time is None:
        return [ErasureProblem(erasure.name, "NotVerified", "it is not verified yet, so it has no record.")]
    uri = outcome.record

    def problem(code: str, what: str) -> ErasureProblem:
        return ErasureProblem(erasure.name, code, f"{uri}: {what}.")

    if found.content is None:
        return [problem("RecordMissing", "the ledger names this file as the record, but it does not exist")]
    wrong: list[ErasureProblem] = []
    actual = hashlib.sha256(found.content).hexdigest()
    if actual != outcome.record_sha256:
        wrong.append(problem("RecordChanged", f"its SHA-256 is {actual}; the ledger says {outcome.record_sha256}"))
    if found.document is None:
        wrong.append(problem("RecordUnreadable", "it is not a JSON object"))
    else:
        wrong += [problem(code, what) for code, what in _content(opened.facts.uuid, erasure.key, outcome, found)]
    if keys:
        statement = Statement(opened.facts.uuid, erasure.key, outcome.record_sha256, outcome.verified_time)
        signature = content_of(opened, f"{uri}{SUFFIX}")
        if signature is None:
            wrong.append(problem("SignatureMissing", f"there is no signature file (the same name with {SUFFIX})"))
        elif (why := fault(signature, statement, keys)) is not None:
            wrong.append(problem("SignatureInvalid", f"its signature is invalid: {why}"))
    return wrong


def digest_problems(
    erasure: ListedErasure, found: StoredRecord, key: bytes, values: Sequence[bytes]
) -> list[ErasureProblem]:
    """Compare the keyed digest in a record with the digest of what was erased.

    Args:
        key: The digest key, at least 16 bytes.
        values: The lists of an Erase by records, one for each of its conditions. Empty: not given; then only digests of
            batches are compared.
    """
    request = (found.document or {}).get("request")
    request = request if isinstance(request, dict) else {}
    by_batches = bool(erasure.result.batch_ids)
    name = "batch-ids-digest" if by_batches else "values-digest"
    contents = ["\n".join(erasure.result.batch_ids).encode()] if by_batches else values
    if not contents:
        return []
    recorded, actual = request.get(name), values_digest(contents, key)
    if recorded == actual:
        return []
    why = "does not match: it is the digest of other values"
    if not isinstance(recorded, str) or not recorded:
        why = "is missing: the run had no digest key"
    elif recorded.partition(":")[0] != actual.partition(":")[0]:
        why = "was made with another key"
    return [ErasureProblem(erasure.name, "DigestDiffers", f"request.{name} of the record {why}.")]


def _content(uuid: str, key: str, outcome: ErasureOutcome, found: StoredRecord) -> list[tuple[str, str]]:
    document = found.document or {}
    version = document.get("format-version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        return [("RecordUnreadable", f"its format-version is {version!r}, expected 1 to {FORMAT_VERSION}")]
    wrong: list[tuple[str, str]] = []
    if version >= CANONICAL_SINCE and canonical(document) != found.content:
        wrong.append(("RecordNotCanonical", "it is not in canonical form, so programs may read it differently"))
    actual = (_at(document, "table", "uuid"), _at(document, "restatement", "key"), _verified_time(document))
    expected = (uuid, key, outcome.verified_time)
    for name, is_, expected_value in zip(
        ("table.uuid", "restatement.key", "verified.time"), actual, expected, strict=True
    ):
        if is_ != expected_value:
            wrong.append(("RecordOfAnother", f"its {name} is {is_!s}, expected {expected_value!s}"))
    return wrong


def _at(document: Mapping[str, Any], part: str, name: str) -> Any:
    inner = document.get(part)
    return inner.get(name) if isinstance(inner, dict) else None


def _verified_time(document: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(_at(document, "verified", "time")))
    except ValueError:
        return None


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

    Exit code 1 if there is a problem.

    Compares each record with its hash in the ledger, with its erasure, and with its signature. With --storage, also lists every
    location of the table: the removed files must be gone, and no data file may contain rows of the erased batches, whatever its
    name. Lethe does not keep the values of an Erase by records: give them with --values to search every object for them. Objects
    that cannot be searched are problems, too. The output contains no values.
    """
    evidence = _given(len(restatements), **files)
    with working("reading the records"):
        opened = open_table(table, batch_column)
        listed_erasures = known_erasures(opened.ledger())
        chosen = (
            named(listed_erasures, table, restatements)
            if restatements
            else [k for k in listed_erasures if k.outcome is not None]
        )
        failures = [p for k in chosen for p in _verify_record(opened, k, evidence)]
    notes = [] if evidence.public_keys else ["signatures were not verified: give --public-key"]
    if evidence.storage:
        in_storage, unverified = _verify_storage(opened, chosen, evidence.values)
        failures, notes = [*failures, *in_storage], [*notes, *unverified]
    else:
        notes.append("the storage was not searched: give --storage")
    if as_json:
        print_json(
            {
                "table": table,
                "erasures": [k.name for k in chosen],
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
        verdict = f"{len(failures)} problems" if failures else "no problems"
        click.echo(f"{table}: {len(chosen)} erasures: {verdict}")
    context.exit(1 if failures else 0)


@dataclass(frozen=True)
class GivenEvidence:
    """What the user gave to verify the records with."""

    public_keys: Sequence[PublicKey]
    """Empty: skip signatures."""
    storage: bool
    """Whether to search the storage."""
    values: Sequence[str]
    """The values to search for; empty: none were given."""
    values_contents: Sequence[bytes]
    """The contents of the files of values; empty: none were given."""
    digest_key: bytes
    """Empty: skip digests."""


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


def _verify_record(opened: Opened, erasure: ListedErasure, evidence: GivenEvidence) -> list[ErasureProblem]:
    outcome = erasure.outcome
    record = read_record(opened, outcome.record) if outcome is not None else StoredRecord()
    failures = problems(opened, erasure, record, evidence.public_keys)
    if evidence.digest_key and record.document is not None:
        failures += digest_problems(erasure, record, evidence.digest_key, evidence.values_contents)
    return failures


def _verify_storage(
    opened: Opened, chosen: Sequence[ListedErasure], values: Sequence[str]
) -> tuple[list[ErasureProblem], list[str]]:
    """Search the storage for what was erased. Returns the problems, and notes about what was not searched."""
    failures: list[ErasureProblem] = []
    with working("listing the storage"):
        listed = storage_check.list_locations(opened)
    failures += (
        ErasureProblem("", "NotListed", f"{uri} cannot be listed: {why}.") for uri, why in listed.unlisted.items()
    )
    notes: list[str] = []
    if not listed.storage.supports_versions:
        notes.append("the storage cannot list older versions of objects")
    unread: dict[str, str] = {}
    field_id = opened.facts.batch_field_id
    with progress() as bar:
        for erasure in chosen:
            outcome = erasure.outcome
            if outcome is None:
                continue
            document = read_record(opened, outcome.record).document or {}
            present = storage_check.files_present(listed, document)
            failures += _found_in_storage(
                erasure.name, "FileIsThere", "files that the record lists as removed", present
            )
            if not erasure.result.batch_ids or field_id is None:
                if not values:
                    notes.append(f"{erasure.name}: Lethe does not keep its values: give --values to search for them")
                continue
            task = bar.add_task(erasure.name, total=len(listed.own))
            column = storage_check.SearchedColumn(field_id, opened.table.schema().find_column_name(field_id) or "")
            rows = storage_check.files_with_batches(
                listed, column, erasure.result.batch_ids, partial(bar.advance, task)
            )
            failures += _found_in_storage(
                erasure.name, "BatchIsThere", "data files with rows of its batches", rows.holding
            )
            unread |= rows.unreadable
        if values:
            task = bar.add_task("values", total=len(listed.paths))
            schemas = [*opened.table.schemas().values()]
            objects = storage_check.objects_with_values(listed, values, schemas, partial(bar.advance, task))
            failures += _found_in_storage("", "ValueIsThere", "objects with one of the values", objects.holding)
            unread |= objects.unreadable
    failures += (
        ErasureProblem("", "NotReadable", f"{path} cannot be searched: {why}.") for path, why in sorted(unread.items())
    )
    return failures, notes


def _found_in_storage(restatement: str, code: str, what: str, paths: Sequence[str]) -> Iterable[ErasureProblem]:
    if not paths:
        return ()
    return (ErasureProblem(restatement, code, f"the storage contains {len(paths)} {what}: {', '.join(paths)}."),)


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
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise InputError("InvalidValues", f"{path} is not UTF-8 text.") from None
    values = sorted({line.removesuffix("\r") for line in lines if line.strip()})
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
