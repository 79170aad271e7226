"""Makes and verifies the record of a subject's erasure or redaction in several tables. Pure.

It names the record of each table with its digest, so its own signature covers them all. It contains no values of rows. A copy is
beside each of the tables.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lethe.contract.result import RecordedRedaction
from lethe.contract.run import Provenance
from lethe.erasure.record import Record, canonical, file_prefix, provenance_document, redaction_document

FORMAT_VERSION: Final = 1
FIELDS: Final = frozenset(
    {"format-version", "request", "datasets", "datasets-without-identity", "verified", "not-covered"}
)
"""The top-level fields of a record."""
NOT_COVERED: Final = (
    "Datasets that declare none of the identities, and tables, files and copies that are no Datasets of the namespace",
    "batches that producers put into a buffer again after the request",
)
_TYPE: Final = "lethe request record"


@dataclass(frozen=True)
class TableErasure:
    """The verified erasure of the subject from one table."""

    dataset: str
    """Name of the Dataset."""
    table: str
    """The catalog, the namespace and the name of the table, with dots."""
    restatement: str
    """`namespace/name` of the Restatement."""
    columns: tuple[str, ...]
    """The columns by which the rows were found."""
    rows_erased: int | None
    record: str
    """URI of the table's own record."""
    record_sha256: str
    signature: str | None
    """Of the table's own record, as a status shows it; None: it is not signed."""
    verified_time: datetime
    rows_redacted: int | None = None
    """None: the rows were erased."""
    not_covered: tuple[str, ...] = ()
    """Where copies of the rows may be that the table's own record does not cover, such as the buffer."""


@dataclass(frozen=True)
class AskedErasure:
    """What was asked for."""

    key: str
    name: str
    """`namespace/name` of the Restatement."""
    identities: tuple[str, ...]
    """Names of the identities."""
    selector: Mapping[str, Any]
    """`spec.datasetSelector`."""
    provenance: Provenance
    redaction: RecordedRedaction | None = None
    """What was written into which columns; None: the rows were erased."""


@dataclass(frozen=True)
class RequestStatement:
    """What is signed, beside `lethe.erasure.record.Statement`."""

    request: str
    """The key."""
    record_sha256: str
    """The SHA-256 of the record, in hex."""
    verified_time: datetime

    @property
    def document(self) -> dict[str, Any]:
        """The fields to sign, ready for JSON."""
        return {
            "type": _TYPE,
            "request": self.request,
            "record-sha256": self.record_sha256,
            "verified-time": self.verified_time.isoformat(),
        }


def request_record(asked: AskedErasure, tables: Sequence[TableErasure], without_identity: Sequence[str]) -> Record:
    """Make the record of a request that is verified in all its tables.

    Args:
        tables: At least one.
        without_identity: Names of selected Datasets that were not searched.
    """
    redaction = {"redaction": redaction_document(asked.redaction)} if asked.redaction is not None else {}
    document: dict[str, Any] = {
        "format-version": FORMAT_VERSION,
        "request": {
            "key": asked.key,
            "identities": sorted(set(asked.identities)),
            "dataset-selector": asked.selector,
            **redaction,
            **provenance_document(asked.name, asked.provenance),
        },
        "datasets": [
            {
                "dataset": t.dataset,
                "table": t.table,
                "restatement": t.restatement,
                "columns": list(t.columns),
                "rows-erased": t.rows_erased,
                **({"rows-redacted": t.rows_redacted} if t.rows_redacted is not None else {}),
                "record": t.record,
                "record-sha256": t.record_sha256,
                "signature": t.signature,
                "verified-time": t.verified_time.isoformat(),
                "not-covered": list(t.not_covered),
            }
            for t in sorted(tables, key=lambda t: t.dataset)
        ],
        "datasets-without-identity": sorted(without_identity),
        "verified": {"time": verified_time(tables).isoformat()},
        "not-covered": list(NOT_COVERED),
    }
    content = canonical(document)
    digest = hashlib.sha256(content).hexdigest()
    return Record(f"{file_prefix(asked.key)}{digest[:16]}.json", content, digest)


def verified_time(tables: Sequence[TableErasure]) -> datetime:
    """When the last of the tables was verified."""
    return max(t.verified_time for t in tables)


def is_request_record(document: Mapping[str, Any]) -> bool:
    """Whether a document has the form of such a record, of any version."""
    return document.keys() == FIELDS
