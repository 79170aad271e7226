"""Writes the record of a subject request beside each of its tables, with its signature. I/O."""

from collections.abc import Sequence

from lethe.base import names
from lethe.contract.result import RecordedRedaction, RedactedColumn
from lethe.contract.run import Provenance
from lethe.contract.settings import BufferLayout
from lethe.contract.status import ErasureStatus
from lethe.erasure.request_record import AskedErasure, RequestStatement, TableErasure, request_record, verified_time
from lethe.iceberg import catalogs
from lethe.storage.object_store import write_once
from lethe.storage.vended import of_table
from pyiceberg.io import load_file_io

from lethe_operator.erasure.signatures import signature_beside
from lethe_operator.request.decide import Part
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings


class RecordNotWritten(Exception):
    """The record of a request cannot be made yet. The text says why."""


def write(
    request: Restatement, parts: Sequence[Part], without_identity: Sequence[str], settings: Settings
) -> ErasureStatus:
    """Write the record. Writing it again changes nothing.

    Args:
        parts: All verified.

    Returns:
        What the status shows of it.

    Raises:
        RecordNotWritten: A table's own record is not known or not signed.
        LetheError: Another file is in its place, or the store cannot lock it.
        Exception: What the storage raises.
    """
    tables = [_table(p, settings) for p in parts]
    made = request_record(_asked(request), tables, without_identity)
    statement = RequestStatement(request.key, made.sha256, verified_time(tables))
    signatures: dict[str, str | None] = {}
    for part, table in zip(parts, tables, strict=True):
        uri = f"{table.record.rpartition('/')[0]}/{made.name}"
        signatures[uri] = _write(part, uri, made.content, statement, settings)
    first = next(iter(signatures))
    return ErasureStatus(
        verified_time=statement.verified_time,
        record=first,
        record_sha256=made.sha256,
        signature=signatures[first],
    )


def _asked(request: Restatement) -> AskedErasure:
    subject, selector = request.spec.subject, request.spec.dataset_selector
    assert subject is not None
    assert selector is not None
    return AskedErasure(
        key=request.key,
        name=request.meta.full_name,
        identities=tuple(i.identity for i in subject.identities),
        selector=selector.to_document(),
        provenance=request.provenance or Provenance(),
        redaction=_redaction(request),
    )


def _redaction(request: Restatement) -> RecordedRedaction | None:
    redact = request.spec.redact
    if redact is None:
        return None
    columns = tuple(RedactedColumn(column=c.column, method=c.method) for c in redact.columns)
    key = f"{redact.secret.name}/{redact.secret.key}" if redact.secret is not None else ""
    return RecordedRedaction(columns=columns, hash_key=key)


def _table(part: Part, settings: Settings) -> TableErasure:
    child = part.child
    erasure = child.status.erasure if isinstance(child, Restatement) else None
    if part.target is None or not isinstance(child, Restatement):
        raise RecordNotWritten(f"Dataset {part.dataset} does not exist any more, so its table is not known")
    if erasure is None or not erasure.record or not erasure.record_sha256 or erasure.verified_time is None:
        raise RecordNotWritten(f"the status of Restatement {child.meta.name} does not name its record")
    table = part.target.dataset.status.table
    folder = f"{str(table.location).rstrip('/')}/{names.ERASURES_FOLDER}" if table is not None else ""
    if erasure.record.rpartition("/")[0] != folder:
        raise RecordNotWritten(
            f"Restatement {child.meta.name} names the record {erasure.record}, expected one in {folder}/"
        )
    if settings.signer is not None and not erasure.signature:
        raise RecordNotWritten(f"the record of Restatement {child.meta.name} is not signed")
    dataset, result = part.target.dataset, child.status.result
    rows = child.spec.rows
    return TableErasure(
        dataset=part.dataset,
        table=f"{dataset.spec.table.catalog}.{dataset.spec.table.name}",
        restatement=child.meta.full_name,
        columns=tuple(dict.fromkeys(c.column for c in rows.conditions)) if rows is not None else (),
        rows_erased=result.rows_erased if result is not None else None,
        rows_redacted=result.rows_redacted if result is not None else None,
        record=erasure.record,
        record_sha256=erasure.record_sha256,
        signature=erasure.signature,
        verified_time=erasure.verified_time,
        not_covered=_not_covered(dataset),
    )


def _not_covered(dataset: Dataset) -> tuple[str, ...]:
    """Where copies of rows may be that no run searches."""
    buffer, kafka = dataset.spec.buffer, dataset.spec.source.kafka
    kept = f"{buffer.retention_seconds} seconds after its promotion"
    what = "file" if buffer.layout is BufferLayout.FILE else "folder"
    places = [
        f"{buffer.uri}: the {what} of a promoted batch until {kept}",
        f"{buffer.uri}: batches that wait or are held, and refused ones in _refused/",
        "folders of replacements that Restatements named",
    ]
    if kafka is not None:
        places.append(f"the topics {', '.join(kafka.topics)} of the Kafka cluster {kafka.cluster}")
    return tuple(places)


def _write(part: Part, uri: str, content: bytes, statement: RequestStatement, settings: Settings) -> str | None:
    """Write one copy of the record, and return its signature; None: records are not signed."""
    assert part.target is not None
    table = part.target.dataset.spec.table
    properties = of_table(catalogs.properties(table.catalog), table.name)
    io = load_file_io(dict(properties), uri)
    write_once(uri, content, io, properties, settings.record_retention)
    if settings.signer is None:
        return None
    return signature_beside(uri, statement, io, properties, settings, settings.signer)
