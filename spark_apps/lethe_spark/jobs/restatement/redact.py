"""What a Redact selects and writes: reads the mounted Secrets, and resolves columns by the table's current names. I/O."""

from lethe.base.errors import InputError
from lethe.contract.run import RestatementRequest
from lethe.files.values import ValueKind, Values, ValueType
from lethe.restatement.plan import KEY_BYTES_AT_LEAST
from lethe.search.positions import Wanted
from lethe.search.redaction import RedactableColumn, redactable_columns

from lethe_spark.commit.table_state import Base
from lethe_spark.jobs.restatement.values import read_mounted
from lethe_spark.sql.redacting import RowRedaction


def redactable(request: RestatementRequest, base: Base) -> tuple[RedactableColumn, ...]:
    """The columns that a request redacts; empty if it redacts none.

    Raises:
        InputError: As `redactable_columns`.
    """
    table, asked = base.iceberg, request.redact.columns if request.redact is not None else ()
    return redactable_columns(asked, request.name, table.schema(), table.spec(), base.field_id, base.facts.name)


def redaction_of(request: RestatementRequest, base: Base) -> RowRedaction:
    """What a Redact writes.

    Raises:
        InputError: As `redactable_columns`. `InvalidHashKey`.
        TransientError: `SecretNotFound`.
    """
    columns, asked = redactable(request, base), request.redact
    assert asked is not None
    if not asked.hash_key_file:
        return RowRedaction(columns)
    where = f"Restatement {request.name}: spec.redact.hashKeyFrom"
    least = f"at least {KEY_BYTES_AT_LEAST} random bytes"
    key = read_mounted(asked.hash_key_file, (asked.secret, asked.secret_key), where, f"with {least}")
    if len(key) < KEY_BYTES_AT_LEAST:
        raise InputError(
            "InvalidHashKey",
            f"{where}: the key {asked.hash_key} has {len(key)} bytes, expected {least}: the values could be guessed. Create a "
            "Restatement with another key. Nothing was redacted.",
        )
    return RowRedaction(columns, key)


def wanted_batches(request: RestatementRequest, base: Base) -> Wanted:
    """The rows of the batches that a Redact names."""
    ids = tuple(sorted(frozenset(request.batch_ids)))
    return Wanted.of(base.field_id, Values(ValueKind(ValueType.STRING), ids))
