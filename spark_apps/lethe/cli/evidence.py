"""Verifies the evidence of erasures: ledger entries, records, signatures, and the storage. I/O: reads.

The record of a subject request is verified with the records of all its tables.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lethe.base.errors import InputError, LetheError
from lethe.cli import storage_check
from lethe.cli.content_search import SearchedColumn
from lethe.cli.opening import Opened, open_table
from lethe.cli.output import progress, working
from lethe.contract.result import ErasureOutcome, RequestResult
from lethe.erasure import request_record
from lethe.erasure.record import FORMAT_VERSION, SUFFIX, PublicKey, Statement, canonical, fault
from lethe.iceberg import catalogs
from lethe.ledger.ledger import Ledger
from lethe.ledger.tombstone import Erasure
from lethe.restatement.plan import name_of, recalled, values_digest
from lethe.storage.file_io import file_io

CANONICAL_SINCE = 2
"""The format version since which records are canonical."""


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
    return StoredRecord(content, _parsed(content) if content is not None else None)


def _parsed(content: bytes) -> Mapping[str, Any] | None:
    """A JSON object; None: the content is none. Anyone who may write the table may have changed it."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _is_canonical(document: Mapping[str, Any], content: bytes) -> bool:
    try:
        return canonical(document) == content
    except (ValueError, RecursionError):  # such as a number that JSON does not have
        return False


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
    batch_ids = erasure.result.named_batch_ids
    by_batches = bool(batch_ids)
    name = "batch-ids-digest" if by_batches else "values-digest"
    contents = ["\n".join(batch_ids).encode()] if by_batches else values
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
    if version >= CANONICAL_SINCE and not _is_canonical(document, found.content or b""):
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


def verify_record(opened: Opened, erasure: ListedErasure, evidence: GivenEvidence) -> list[ErasureProblem]:
    """Compare a record with the ledger, and with what was given.

    Raises:
        Exception: What the storage raises.
    """
    outcome = erasure.outcome
    record = read_record(opened, outcome.record) if outcome is not None else StoredRecord()
    failures = problems(opened, erasure, record, evidence.public_keys)
    if evidence.digest_key and record.document is not None:
        failures += digest_problems(erasure, record, evidence.digest_key, evidence.values_contents)
    return failures


def verify_storage(
    opened: Opened, chosen: Sequence[ListedErasure], values: Sequence[str]
) -> tuple[list[ErasureProblem], list[str]]:
    """Search the storage for what was erased.

    Returns:
        The problems, and notes about what was not searched.

    Raises:
        Exception: What the storage raises.
    """
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
    facts = opened.facts
    # Files keep the field id of a column that was dropped.
    field_id = facts.batch_field_id if facts.batch_field_id is not None else facts.remembered_field_id
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
            if not erasure.result.batch_ids:
                if not values:
                    notes.append(f"{erasure.name}: Lethe does not keep its values: give --values to search for them")
                continue
            if field_id is None:
                why = "it is not known which column has the ids of batches, so no file was searched for rows of its batches"
                failures.append(
                    ErasureProblem(erasure.name, "NotReadable", f"{why}. Name the column with --batch-column.")
                )
                continue
            task = bar.add_task(erasure.name, total=len(listed.own))
            column = SearchedColumn.of(opened.table, field_id)
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


@dataclass(frozen=True)
class TableEvidence:
    """What was verified of one table."""

    table: str
    """Catalog.namespace.table."""
    restatements: tuple[str, ...]
    """Names of the verified erasures."""
    problems: tuple[ErasureProblem, ...]
    notes: tuple[str, ...] = ()
    """What was not verified."""


def verify_request(place: str, evidence: GivenEvidence) -> list[TableEvidence]:
    """Verify the record of a subject request, and the erasure of each table that it names.

    Args:
        place: The file or the URI of the record.

    Returns:
        The tables; first the record itself, whose `table` is the place.

    Raises:
        InputError: RecordMissing, RecordUnreadable.
        Exception: What catalogs and storages raise.
    """
    content, signature = (_content_at(f"{place}{end}") for end in ("", SUFFIX))
    if content is None:
        text = f"there is no file {place}, or no configured catalog can read it. Name a file that you have downloaded."
        raise InputError("RecordMissing", text)
    document = _parsed(content)
    if document is None or not _is_of_request(document):
        raise InputError(
            "RecordUnreadable", f"{place} is not the record of an erasure of a subject from several tables."
        )
    own = [ErasureProblem("", code, f"{place}: {what}.") for code, what in _of_request(place, content, document)]
    if evidence.public_keys:
        own += _of_signature(place, content, document, signature, evidence.public_keys)
    return [TableEvidence(place, (), tuple(own)), *(_table(entry, evidence) for entry in document["datasets"])]


def _is_of_request(document: Mapping[str, Any]) -> bool:
    """Whether a document has the form of the record of a request, as far as it is read here."""
    tables = document.get("datasets")
    return (
        request_record.is_request_record(document)
        and document.get("format-version") == request_record.FORMAT_VERSION
        and isinstance(tables, list)
        and all(isinstance(table, dict) for table in tables)
    )


def _content_at(place: str) -> bytes | None:
    """The content of a local file, or of an object that a configured catalog can read; None: neither."""
    if "://" not in place:
        path = Path(place)
        return path.read_bytes() if path.is_file() else None
    for properties in catalogs.every().values():
        try:
            with file_io(properties, place).new_input(place).open() as stream:
                return bytes(stream.read())
        except Exception:  # of another store
            continue
    return None


def _of_request(place: str, content: bytes, document: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if not _is_canonical(document, content):
        yield "RecordNotCanonical", "it is not in canonical form, so programs may read it differently"
    if not place.endswith(f"-{hashlib.sha256(content).hexdigest()[:16]}.json"):
        yield "RecordChanged", "its name has the digest of another content"
    times = [str(d.get("verified-time")) for d in document["datasets"]]
    if not times or _at(document, "verified", "time") != max(times):
        yield "RecordOfAnother", "its time of verification is not that of the last table"


def _of_signature(
    place: str, content: bytes, document: Mapping[str, Any], signature: bytes | None, keys: Sequence[PublicKey]
) -> list[ErasureProblem]:
    if signature is None:
        text = f"{place}: there is no signature file (the same name with {SUFFIX})."
        return [ErasureProblem("", "SignatureMissing", text)]
    verified, key = _verified_time(document), str(_at(document, "request", "key"))
    why: str | None = "the record has no time of verification"
    if verified is not None:
        expected = request_record.RequestStatement(key, hashlib.sha256(content).hexdigest(), verified)
        why = fault(signature, expected, keys)
    return [ErasureProblem("", "SignatureInvalid", f"{place}: its signature is invalid: {why}.")] if why else []


def _table(entry: Mapping[str, Any], evidence: GivenEvidence) -> TableEvidence:
    """Verify the erasure of one table that the record of a request names."""
    table, name, digest = str(entry.get("table")), str(entry.get("restatement")), entry.get("record-sha256")
    try:
        opened = open_table(table)
        known = {k.outcome.record_sha256: k for k in known_erasures(opened.ledger()) if k.name == name and k.outcome}
    except LetheError as e:
        return TableEvidence(table, (name,), (ErasureProblem(name, "NotVerified", f"{table}: {e}."),))
    if not known:
        why = f"{table}: its ledger has no verified erasure {name}."
        return TableEvidence(table, (name,), (ErasureProblem(name, "NotVerified", why),))
    # A Restatement that was deleted and created again with another spec has the same name, and another record.
    named_here = known.get(digest) if isinstance(digest, str) else None
    erasure = named_here or next(iter(known.values()))
    found = verify_record(opened, erasure, evidence)
    if named_here is None:
        text = f"{table}: the record of the request names another record than the ledger."
        found.append(ErasureProblem(name, "RecordOfAnother", text))
    notes: list[str] = []
    if evidence.storage:
        in_storage, notes = verify_storage(opened, [erasure], evidence.values)
        found += in_storage
    return TableEvidence(table, (name,), tuple(found), tuple(notes))
