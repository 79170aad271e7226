"""The evidence of an erasure: its record, as the ledger names it, and the signature beside it, compared with each other. I/O:
reads the ledger and these files."""

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
class Known:
    """An erasure as the ledger has it."""

    key: str  # of its request
    result: RequestResult
    owed: Erasure | None = None  # None: it was verified

    @property
    def name(self) -> str:
        return name_of(self.key)

    @property
    def outcome(self) -> ErasureOutcome | None:
        """None: it is open."""
        found = self.result.erasure
        return found if found is not None and found.verified_time is not None else None


@dataclass(frozen=True)
class Problem:
    """`code`: one word for programs; `what`: one sentence, which holds no value of a row."""

    restatement: str  # its name
    code: str
    what: str


@dataclass(frozen=True)
class Read:
    """A record as it lies in the storage."""

    content: bytes | None  # None: it is not there
    document: Mapping[str, Any] | None  # None: it is not there or not readable


def known_erasures(ledger: Ledger) -> list[Known]:
    """All of which the ledger remembers the request, those that are open first."""
    owed = {e.restatement: e for e in ledger.open_erasures}
    found: list[Known] = []
    for key, entry in ledger.requests.items():
        try:
            result = recalled(entry)
        except ValidationError:
            continue  # of a later version
        if key in owed or (result.erasure is not None and result.erasure.verified_time is not None):
            found.append(Known(key, result, owed.get(key)))
    return sorted(found, key=lambda k: (k.owed is None, k.name, k.key))


def named(known: Sequence[Known], table: str, names: Sequence[str]) -> list[Known]:
    """Those with one of these names, or of these keys. Raises: InputError (UnknownErasure)."""
    found: list[Known] = []
    for name in names:
        some = [k for k in known if name in (k.name, k.key)]
        if not some:
            raise InputError(
                "UnknownErasure",
                f"the ledger of {table} knows no erasure {name!r}, expected namespace/name of a Restatement; see lethe erasures "
                f"list {table}.",
            )
        found += (k for k in some if k not in found)
    return found


def read(opened: Opened, uri: str) -> Read:
    """Raises: what the storage raises."""
    content = content_of(opened, uri)
    try:
        document = json.loads(content) if content is not None else None
    except ValueError:
        document = None
    return Read(content, document if isinstance(document, dict) else None)


def content_of(opened: Opened, uri: str) -> bytes | None:
    """None: there is no such file. Raises: what the storage raises."""
    try:
        with opened.table.io.new_input(uri).open() as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def problems(opened: Opened, erasure: Known, found: Read, keys: Sequence[PublicKey]) -> list[Problem]:
    """What is wrong with the evidence of an erasure.

    Args:
        keys: By one of which it must be signed; none: the signature is not looked at.
    """
    outcome = erasure.outcome
    if outcome is None or outcome.verified_time is None:
        return [Problem(erasure.name, "NotVerified", "it is not verified yet, so there is no record of it.")]
    uri = outcome.record

    def problem(code: str, what: str) -> Problem:
        return Problem(erasure.name, code, f"{uri}: {what}.")

    if found.content is None:
        return [problem("RecordMissing", "the ledger names it as the record, and no file is there")]
    wrong: list[Problem] = []
    actual = hashlib.sha256(found.content).hexdigest()
    if actual != outcome.record_sha256:
        wrong.append(problem("RecordChanged", f"its SHA-256 is {actual}, the ledger says {outcome.record_sha256}"))
    if found.document is None:
        wrong.append(problem("RecordUnreadable", "it is no JSON object"))
    else:
        wrong += [problem(code, what) for code, what in _content(opened.facts.uuid, erasure.key, outcome, found)]
    if keys:
        statement = Statement(opened.facts.uuid, erasure.key, outcome.record_sha256, outcome.verified_time)
        signature = content_of(opened, f"{uri}{SUFFIX}")
        if signature is None:
            wrong.append(problem("SignatureMissing", f"there is no {SUFFIX} file beside it"))
        elif (why := fault(signature, statement, keys)) is not None:
            wrong.append(problem("SignatureInvalid", f"of the signature beside it: {why}"))
    return wrong


def digest_problems(erasure: Known, found: Read, key: bytes, values: bytes | None) -> list[Problem]:
    """Whether the keyed digest in a record is that of what was erased.

    Args:
        key: Of the digests. Of fewer than 16 bytes it is none.
        values: One on each line, of an Erase by records; None: they are not given, and only batches can be compared.
    """
    asked = (found.document or {}).get("request")
    asked = asked if isinstance(asked, dict) else {}
    by_batches = bool(erasure.result.batch_ids)
    name = "batch-ids-digest" if by_batches else "values-digest"
    content = "\n".join(erasure.result.batch_ids).encode() if by_batches else values
    if content is None:
        return []
    said, actual = asked.get(name), values_digest(content, key)
    if said == actual:
        return []
    why = "is of something else"
    if not isinstance(said, str) or not said:
        why = "is not there: the run had no key"
    elif said.partition(":")[0] != actual.partition(":")[0]:
        why = "was made with another key"
    return [Problem(erasure.name, "DigestDiffers", f"request.{name} of the record {why}.")]


def _content(uuid: str, key: str, outcome: ErasureOutcome, found: Read) -> list[tuple[str, str]]:
    document = found.document or {}
    version = document.get("format-version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        return [("RecordUnreadable", f"its format-version is {version!r}, expected 1 to {FORMAT_VERSION}")]
    wrong: list[tuple[str, str]] = []
    if version >= CANONICAL_SINCE and canonical(document) != found.content:
        wrong.append(
            ("RecordNotCanonical", "it is not in the canonical form, so readers may differ about what it says")
        )
    said = (_at(document, "table", "uuid"), _at(document, "restatement", "key"), _moment(document))
    expected = (uuid, key, outcome.verified_time)
    for name, is_, wanted in zip(("table.uuid", "restatement.key", "verified.time"), said, expected, strict=True):
        if is_ != wanted:
            wrong.append(("RecordOfAnother", f"its {name} is {is_!s}, expected {wanted!s}"))
    return wrong


def _at(document: Mapping[str, Any], part: str, name: str) -> Any:
    inner = document.get(part)
    return inner.get(name) if isinstance(inner, dict) else None


def _moment(document: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(_at(document, "verified", "time")))
    except ValueError:
        return None
