"""Turns messages into rows of a table, one message a row. Pure, apart from asking a schema registry.

Invariant: a value is never changed. A message that is not exactly a row of the table is refused, and the others are not.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro
import pyarrow as pa
from lethe.base.errors import TransientError
from lethe.contract.settings import SchemaEvolution
from lethe.ingest.avro_format import columns_of_record, rows_of_records
from lethe.ingest.buffer_store import BadFile, FileTask
from lethe.ingest.fitting import Fitting, Piece
from lethe.ingest.schema_fit import Fits, Lacks, Misfit, Rules, compare, known_columns
from lethe.ingest.text_formats import open_json
from lethe_operator.resources.source import Framing, KafkaSource, MessageFormat, UnknownFields

from lethe_inlet.messages import Decoded, Message, Refused
from lethe_inlet.registry import Schemas, framed, parsed

# One message that is not a row makes the others of its piece be read again.
AT_ONCE: Final = 8192


@dataclass(frozen=True)
class Target:
    """The table that rows must fit."""

    # All columns, the batch column among them.
    columns: pa.Schema
    batch_column: str
    evolution: SchemaEvolution

    @property
    def required(self) -> frozenset[str]:
        """Columns that must not contain nulls. The batch column gets its values later."""
        return frozenset(f.name for f in self.columns if not f.nullable and f.name != self.batch_column)

    def fitted(self, rows: pa.Table, batch_id: str, typed: bool) -> pa.Table:
        """Rows with the columns of the table, and those that the table will get. Raises: BadFile."""
        add = self.evolution is SchemaEvolution.ADD_COLUMNS
        columns = {f.name: f for f in known_columns(self.columns)}
        match compare(rows.schema, self.columns, Rules(self.batch_column, self.required, add, typed)):
            case Misfit(message):
                raise BadFile("SchemaMismatch", message)
            case Lacks(wanted):
                columns.update({f.name: f for f in wanted})
            case Fits():
                pass
        target = pa.schema([f for f in columns.values() if f.name != self.batch_column])
        fitting = Fitting(self.batch_column, self.required, null_is_absent=True, target=target)
        return fitting.fitted([Piece(FileTask(batch_id, batch_id, 0), rows)])


@dataclass(frozen=True)
class Decoder:
    """Decodes the messages of one source."""

    source: KafkaSource
    # Of the cluster's registry; None: it has none.
    schemas: Schemas | None = None
    _own: list[Any] = field(default_factory=list)

    def decode(self, messages: Sequence[Message], target: Target, batch_id: str) -> Decoded:
        """The rows of messages. Raises: TransientError (`RegistryAway`)."""
        found: list[pa.Table] = []
        refused: list[Refused] = []
        for start in range(0, len(messages), AT_ONCE):
            self._decode(messages[start : start + AT_ONCE], target, batch_id, found, refused)
        if not found:
            return Decoded(pa.table({}), refused)
        return Decoded(pa.concat_tables(found, promote_options="permissive"), refused)

    def _decode(
        self,
        messages: Sequence[Message],
        target: Target,
        batch_id: str,
        found: list[pa.Table],
        refused: list[Refused],
    ) -> None:
        """Decode all at once. If one of them is not a row, decode each half."""
        try:
            tables = self._rows(messages, target, batch_id)
            if sum(t.num_rows for t in tables) != len(messages):
                raise BadFile("UnreadableMessage", "the message holds several objects, expected one")
            found += tables
        except BadFile as e:
            if len(messages) == 1:
                refused.append(Refused(messages[0], f"{e.reason}: {e.message}"))
                return
            half = len(messages) // 2
            for part in (messages[:half], messages[half:]):
                self._decode(part, target, batch_id, found, refused)

    def _rows(self, messages: Sequence[Message], target: Target, batch_id: str) -> list[pa.Table]:
        """Raises: BadFile, if any of the messages is not a row; TransientError."""
        values: list[bytes] = []
        numbers: list[int] = []
        for message in messages:
            if message.value is None:
                raise BadFile("NoValue", "the message has no value; in a compacted topic, this deletes its key")
            number, payload = (
                framed(message.value) if self.source.framing is Framing.SCHEMA_REGISTRY else (0, message.value)
            )
            values.append(payload)
            numbers.append(number)
        match self.source.format:
            case MessageFormat.JSON:
                return [self._from_json(values, target, batch_id)]
            case MessageFormat.AVRO:
                return [self._from_avro(part, n, target, batch_id) for n, part in _by_schema(values, numbers)]

    def _from_json(self, values: Sequence[bytes], target: Target, batch_id: str) -> pa.Table:
        joined = b"\n".join(map(_one_line, values)) + b"\n"
        try:
            joined.decode()  # Arrow does not check it
        except UnicodeDecodeError:
            raise BadFile("UnreadableMessage", "the message is not UTF-8") from None
        opened = open_json(io.BytesIO(joined), target.columns)
        rows = pa.concat_tables(opened.tables, promote_options="default")
        if self.source.unknown_fields is UnknownFields.IGNORE:
            rows = rows.select([n for n in rows.column_names if n in target.columns.names])
        return target.fitted(rows, batch_id, typed=False)

    def _from_avro(self, values: Sequence[bytes], number: int, target: Target, batch_id: str) -> pa.Table:
        schema = self._schema(number)
        columns, uuids = columns_of_record(schema, target.columns)
        records = [_record(v, schema) for v in values]
        try:
            rows = rows_of_records(records, columns, uuids)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as e:
            raise BadFile("UnreadableMessage", f"its values cannot be read ({type(e).__name__})") from None
        if self.source.unknown_fields is UnknownFields.IGNORE:
            rows = rows.select([n for n in rows.column_names if n in target.columns.names])
        return target.fitted(rows, batch_id, typed=True)

    def _schema(self, number: int) -> Any:
        if self.source.framing is Framing.NONE:
            if not self._own:
                self._own.append(parsed(self.source.avro_schema, "spec.source.kafka.schema"))
            if isinstance(self._own[0], BadFile):
                raise TransientError("InvalidSchema", f"{self._own[0].message}. Correct it.")
            return self._own[0]
        if self.schemas is None:
            raise TransientError(
                "NoSchemaRegistry",
                f"The Kafka cluster {self.source.cluster} has no schemaRegistry in the chart's value inlet.clusters, and "
                "spec.source.kafka.framing needs one. Add it, or set framing to None.",
            )
        return self.schemas.get(number)


def _one_line(value: bytes) -> bytes:
    """A JSON object as one line. Raises: BadFile, if it is certainly none."""
    text = value.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")):
        raise BadFile("UnreadableMessage", "the message is not a JSON object")
    if b"\n" not in text and b"\r" not in text:
        return text
    try:
        json.loads(text)  # refuses line breaks within strings, so all others are between tokens
    except (ValueError, RecursionError):
        raise BadFile("UnreadableMessage", "the message is not readable as JSON") from None
    return text.replace(b"\n", b" ").replace(b"\r", b" ")


def _record(value: bytes, schema: Mapping[str, Any]) -> Any:
    stream = io.BytesIO(value)
    try:
        found: Any = fastavro.schemaless_reader(stream, schema)
    except Exception as e:  # of any kind: the bytes are someone else's
        raise BadFile("UnreadableMessage", f"the message is not readable as Avro ({type(e).__name__})") from None
    if stream.tell() != len(value):
        raise BadFile("UnreadableMessage", "the message is longer than its Avro record")
    return found


def _by_schema(values: Sequence[bytes], numbers: Sequence[int]) -> list[tuple[int, list[bytes]]]:
    found: dict[int, list[bytes]] = {}
    for value, number in zip(values, numbers, strict=True):
        found.setdefault(number, []).append(value)
    return list(found.items())
