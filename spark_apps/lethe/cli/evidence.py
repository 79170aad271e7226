"""Verifies the evidence of an erasure: its ledger entry, its record, and the signature of the record. I/O: reads."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from lethe.base.errors import InputError
from lethe.cli.opening import Opened
from lethe.contract.result import ErasureOutcome, RequestResult
from lethe.erasure.record import FORMAT_VERSION, canonical
from lethe.erasure.signature import SUFFIX, PublicKey, Statement, fault
from lethe.ledger.erasure import Erasure
from lethe.ledger.ledger import Ledger
from lethe.restatement.record import name_of, recalled
from lethe.restatement.values_digest import values_digest

CANONICAL_SINCE = 2  # format version


@dataclass(frozen=True)
class KnownErasure:
    """An erasure in the ledger."""

    key: str  # of its request
    result: RequestResult
    pending: Erasure | None = None  # None: it is verified

    @property
    def name(self) -> str:
        return name_of(self.key)

    @property
    def outcome(self) -> ErasureOutcome | None:
        """None: the erasure is open."""
        found = self.result.erasure
        return found if found is not None and found.verified_time is not None else None


@dataclass(frozen=True)
class Problem:
    """Something wrong with an erasure."""

    restatement: str  # its name; empty: of no single Restatement
    code: str  # CamelCase
    what: str  # one sentence, without values of rows


@dataclass(frozen=True)
class StoredRecord:
    """An erasure record in the storage."""

    content: bytes | None = None  # None: the file is missing
    document: Mapping[str, Any] | None = None  # None: the file is missing, or not a JSON object


def known_erasures(ledger: Ledger) -> list[KnownErasure]:
    """The erasures whose requests are in the ledger, open ones first."""
    pending = {e.restatement: e for e in ledger.open_erasures}
    found: list[KnownErasure] = []
    for key, entry in ledger.requests.items():
        try:
            result = recalled(entry)
        except ValidationError:
            continue  # a later version wrote it
        if key in pending or (result.erasure is not None and result.erasure.verified_time is not None):
            found.append(KnownErasure(key, result, pending.get(key)))
    return sorted(found, key=lambda k: (k.pending is None, k.name, k.key))


def named(known: Sequence[KnownErasure], table: str, names: Sequence[str]) -> list[KnownErasure]:
    """Select erasures by name or key. Raises: InputError (UnknownErasure)."""
    found: list[KnownErasure] = []
    for name in names:
        matches = [k for k in known if name in (k.name, k.key)]
        if not matches:
            raise InputError(
                "UnknownErasure",
                f"the ledger of {table} has no erasure {name!r}: expected namespace/name of a Restatement. `lethe erasures list "
                f"{table}` lists them.",
            )
        found += (k for k in matches if k not in found)
    return found


def read_record(opened: Opened, uri: str) -> StoredRecord:
    """Raises: what the storage raises."""
    content = content_of(opened, uri)
    try:
        document = json.loads(content) if content is not None else None
    except ValueError:
        document = None
    return StoredRecord(content, document if isinstance(document, dict) else None)


def content_of(opened: Opened, uri: str) -> bytes | None:
    """The content of a file; None: it does not exist. Raises: what the storage raises."""
    try:
        with opened.table.io.new_input(uri).open() as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def problems(opened: Opened, erasure: KnownErasure, found: StoredRecord, keys: Sequence[PublicKey]) -> list[Problem]:
    """Verify the evidence of an erasure.

    Args:
        keys: One of them must have signed the record. None given: skip the signature.
    """
    outcome = erasure.outcome
    if outcome is None or outcome.verified_time is None:
        return [Problem(erasure.name, "NotVerified", "it is not verified yet, so it has no record.")]
    uri = outcome.record

    def problem(code: str, what: str) -> Problem:
        return Problem(erasure.name, code, f"{uri}: {what}.")

    if found.content is None:
        return [problem("RecordMissing", "the ledger names this file as the record, but it does not exist")]
    wrong: list[Problem] = []
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


def digest_problems(erasure: KnownErasure, found: StoredRecord, key: bytes, values: bytes | None) -> list[Problem]:
    """Compare the keyed digest in a record with the digest of what was erased.

    Args:
        key: The digest key, at least 16 bytes.
        values: Of an Erase by records, one per line. None: not given; then only digests of batches are compared.
    """
    request = (found.document or {}).get("request")
    request = request if isinstance(request, dict) else {}
    by_batches = bool(erasure.result.batch_ids)
    name = "batch-ids-digest" if by_batches else "values-digest"
    content = "\n".join(erasure.result.batch_ids).encode() if by_batches else values
    if content is None:
        return []
    recorded, actual = request.get(name), values_digest(content, key)
    if recorded == actual:
        return []
    why = "does not match: it is the digest of other values"
    if not isinstance(recorded, str) or not recorded:
        why = "is missing: the run had no digest key"
    elif recorded.partition(":")[0] != actual.partition(":")[0]:
        why = "was made with another key"
    return [Problem(erasure.name, "DigestDiffers", f"request.{name} of the record {why}.")]


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
    for name, is_, wanted in zip(("table.uuid", "restatement.key", "verified.time"), actual, expected, strict=True):
        if is_ != wanted:
            wrong.append(("RecordOfAnother", f"its {name} is {is_!s}, expected {wanted!s}"))
    return wrong


def _at(document: Mapping[str, Any], part: str, name: str) -> Any:
    inner = document.get(part)
    return inner.get(name) if isinstance(inner, dict) else None


def _verified_time(document: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(_at(document, "verified", "time")))
    except ValueError:
        return None
