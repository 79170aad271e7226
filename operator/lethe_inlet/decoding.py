"""Turns messages into rows of a table, one message a row. I/O: a schema registry over HTTP; a process of its own decodes.

Invariant: a value is never changed. A message that is not exactly a row of the table is refused, and the others are not. The
registry speaks Confluent's protocol.
"""

import io
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import fastavro
import pyarrow as pa
import requests
from lethe.base.errors import TransientError
from lethe.contract.dataset import KafkaSource
from lethe.contract.settings import Framing, MessageFormat, SchemaEvolution, UnknownFields
from lethe.decoder.child import ChildLink
from lethe.decoder.limits import TOO_COSTLY, Limits
from lethe.decoder.process import Unit, limits_here, supervise
from lethe.ingest.avro_format import UNICODE_ERRORS, Records
from lethe.ingest.buffer_files import decoded_rows, encoded_rows
from lethe.ingest.buffer_store import BadFile, FileTask
from lethe.ingest.exact_values import promotes
from lethe.ingest.json_format import open_json, refuse_other_value
from lethe.ingest.schema_fit import Fits, Fitting, Lacks, Misfit, Piece, Rules, compare, known_columns
from lethe.ingest.text_blocks import TextFile

from lethe_inlet.epochs import Decoded, RefusedMessage, TopicMessage
from lethe_inlet.settings import Registry

SECONDS: Final = (3.05, 10)  # to connect, and to read
# A message begins with this byte, and four bytes with the id of its schema.
MAGIC: Final = 0
HEADER_BYTES: Final = 5


def framed(value: bytes) -> tuple[int, bytes]:
    """The id of the schema and the payload of a message.

    Raises:
        BadFile: It has no such frame.
    """
    if len(value) < HEADER_BYTES or value[0] != MAGIC:
        raise BadFile(
            "NotFramed",
            "the message does not begin with a zero byte and the id of a schema. Correct the producer, or set framing: None",
        )
    return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]


# One that the registry does not have is asked for again after this time: replicas of a registry, or one that was restored, get it
# later.
MISSING_SECONDS: Final = 30.0


class Schemas:
    """The Avro schemas of a registry. A schema never changes, so each that was found is asked for once."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[int, Any] = {}
        self._missing: dict[int, float] = {}  # when to ask again

    def get(self, number: int) -> Any:
        """A schema as fastavro takes it.

        Raises:
            BadFile: There is none that can be used.
            TransientError: `RegistryAway`.
        """
        with self._lock:
            if number not in self._known:
                self._known[number] = self._fetched(number, self._document(number))
            parser = self._known[number]
        if isinstance(parser, BadFile):
            raise parser
        return parser

    def _document(self, number: int) -> Mapping[str, Any]:
        now, document = self._clock(), None
        if number not in self._missing or self._missing[number] <= now:
            document = self._asked(number)
            self._missing[number] = now + MISSING_SECONDS
        if document is None:
            raise BadFile("SchemaNotFound", f"the schema registry has no schema {number}")
        del self._missing[number]
        return document

    def _fetched(self, number: int, document: Mapping[str, Any]) -> Any:
        if document.get("schemaType", "AVRO") != "AVRO":
            return BadFile("SchemaMismatch", f"schema {number} of the registry is not an Avro schema")
        return parsed(str(document.get("schema", "")), f"schema {number} of the registry")

    def _asked(self, number: int) -> Mapping[str, Any] | None:
        registry = self._registry
        auth = (registry.username, registry.password) if registry.username else None
        url = f"{registry.url.rstrip('/')}/schemas/ids/{number}"
        try:
            answer = requests.get(url, auth=auth, timeout=SECONDS, verify=registry.ca_file or True)
        except requests.RequestException as e:
            raise _away(type(e).__name__) from None
        if answer.status_code == requests.codes.not_found:
            return None
        if answer.status_code != requests.codes.ok:
            raise _away(f"HTTP {answer.status_code}")
        try:
            document = answer.json()
        except ValueError:
            raise _away("no JSON") from None
        return document if isinstance(document, dict) else {}


def parsed(text: str, what: str) -> Any:
    """An Avro schema as fastavro takes it; a BadFile that says why it cannot be used."""
    try:
        schema = fastavro.parse_schema(json.loads(text))
    except Exception as e:  # of any kind: the text is someone else's
        return BadFile("SchemaMismatch", f"{what} cannot be read as an Avro schema ({type(e).__name__})")
    if not isinstance(schema, dict) or schema.get("type") != "record":
        return BadFile(
            "SchemaMismatch", f"{what} is not a record, expected a record with the table's columns as fields"
        )
    return schema


def _away(why: str) -> TransientError:
    return TransientError(
        "RegistryAway", f"The schema registry does not answer ({why}). Nothing is lost; reading goes on when it does."
    )


# One message that is not a row makes the others of its piece be read again.
AT_ONCE: Final = 8192
BYTES_AT_ONCE: Final = 4 * 1024**2
# Of processor time for a piece, in addition to that for its bytes. One message may take this time once for each halving.
CPU_SECONDS: Final = 5.0


@dataclass(frozen=True)
class RowTarget:
    """The table that rows must fit."""

    # All columns, the batch column among them.
    columns: pa.Schema
    batch_column: str
    evolution: SchemaEvolution

    @property
    def required(self) -> frozenset[str]:
        """Columns that must not contain nulls. The batch column gets its values later."""
        return frozenset(f.name for f in self.columns if not f.nullable and f.name != self.batch_column)

    def settled(self, found: Iterable[pa.Schema]) -> "RowTarget":
        """With the columns that rows add, if some of them add one of a name with types that no column can hold together.

        The type that comes first counts. `self`, if all of them can be of one batch.
        """
        added: dict[str, pa.Field] = {}
        differ = False
        for column in (c for schema in found for c in schema if c.name not in self.columns.names):
            known = added.setdefault(column.name, column)
            if promotes(known.type, column.type):
                added[column.name] = column
            elif known.type != column.type and not promotes(column.type, known.type):
                differ = True
        return replace(self, columns=pa.schema([*self.columns, *added.values()])) if differ else self

    def fitted(self, rows: pa.Table, batch_id: str, typed: bool) -> pa.Table:
        """Rows with the columns of the table, and those that the table will get.

        Raises:
            BadFile: The file cannot be used, and reading it again does not change that.
        """
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
        fitting = Fitting(self.batch_column, self.required, null_is_absent=True, target=target, finite=not typed)
        return fitting.fitted([Piece(FileTask(batch_id, batch_id, 0), rows)])


@dataclass(frozen=True)
class Decoder:
    """Decodes the messages of one source."""

    source: KafkaSource
    # Of the cluster's registry; None: it has none.
    schemas: Schemas | None = None
    _own: list[Any] = field(default_factory=list)

    def decode(self, messages: Sequence[TopicMessage], target: RowTarget, batch_id: str) -> Decoded:
        """The rows of messages.

        Raises:
            TransientError: `RegistryAway`.
            NoDecoder: No decoder can be started, or decoders end before they decode anything.
        """
        found = _MessageDecoding(self, messages, target, batch_id).decoded()
        if isinstance(found, RowTarget):
            found = _MessageDecoding(self, messages, found, batch_id).decoded()
        assert isinstance(found, Decoded)
        return found

    def schema(self, number: int) -> Any:
        """A schema as fastavro takes it.

        Raises:
            BadFile: The file cannot be used, and reading it again does not change that.
            TransientError: A dependency is temporarily unavailable.
        """
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


class _MessageDecoding:
    """Decodes messages with decoder processes (`lethe.decoder`). If some messages end one, each half of them is decoded."""

    def __init__(self, decoder: Decoder, messages: Sequence[TopicMessage], target: RowTarget, batch_id: str) -> None:
        self._decoder, self._messages, self._target = decoder, messages, target
        self._numbers: dict[int, int] = {}  # of the schema, by the place of a message
        self._payloads: dict[int, bytes] = {}
        self._refused: dict[int, str] = {}  # why, by the place of a message
        schemas = self._split()
        limits = replace(limits_here(), cpu_seconds=CPU_SECONDS)
        self._work = MessageWork(decoder.source, target, batch_id, schemas, limits)

    def decoded(self) -> Decoded | RowTarget:
        """The rows; the columns to decode them with, if messages add the same column with different types."""
        pieces = list(supervise(self._work, self._units(), self._used, self._refuse, self._halves))
        settled = self._target.settled(p.schema for p in pieces)
        if settled is not self._target:
            return settled
        rows = pa.concat_tables(pieces, promote_options="permissive") if pieces else pa.table({})
        return Decoded(rows, [RefusedMessage(self._messages[n], why) for n, why in sorted(self._refused.items())])

    def _split(self) -> dict[int, Any]:
        """Find the payloads of all messages.

        Returns:
            The schemas that they need, by their numbers.

        Raises:
            TransientError: A dependency is temporarily unavailable.
        """
        source, schemas = self._decoder.source, dict[int, Any]()
        for place, message in enumerate(self._messages):
            try:
                if message.value is None:
                    raise BadFile("NoValue", "the message has no value; in a compacted topic, this deletes its key")
                number, payload = (0, message.value)
                if source.framing is Framing.SCHEMA_REGISTRY:
                    number, payload = framed(message.value)
                if source.format is MessageFormat.AVRO and number not in schemas:
                    schemas[number] = self._decoder.schema(number)
                self._numbers[place], self._payloads[place] = number, payload
            except BadFile as e:
                self._refused[place] = f"{e.reason}: {e.message}"
        return schemas

    def _units(self) -> Iterator[Unit]:
        places: list[int] = []
        size = 0
        for place, payload in self._payloads.items():
            places.append(place)
            size += len(payload)
            if len(places) >= AT_ONCE or size >= BYTES_AT_ONCE:
                yield self._unit(places)
                places, size = [], 0
        if places:
            yield self._unit(places)

    def _unit(self, places: list[int]) -> Unit:
        payloads = [self._payloads[p] for p in places]
        document = {"sizes": [len(p) for p in payloads], "schemas": [self._numbers[p] for p in places]}
        content = b"".join(payloads)
        return Unit(document, content, len(content), f"{len(places)} messages", of=places)

    def _used(self, document: dict[str, Any], contents: list[memoryview], units: dict[int, Unit]) -> Iterator[pa.Table]:
        places = units[document["settled"][0]].of
        for place, why in document["refused"]:
            self._refused[places[place]] = why
        for content in contents:
            yield decoded_rows(content)

    def _halves(self, unit: Unit) -> Sequence[Unit]:
        places = unit.of
        half = len(places) // 2
        return [self._unit(places[:half]), self._unit(places[half:])] if half else []

    def _refuse(self, unit: Unit, why: str) -> None:
        self._refused[unit.of[0]] = f"{TOO_COSTLY}: {why}"


@dataclass(frozen=True)
class MessageWork:
    """What a decoder does with messages."""

    source: KafkaSource
    target: RowTarget
    batch_id: str
    schemas: Mapping[int, Any]
    limits: Limits

    def run(self, link: ChildLink) -> None:
        """Decode without end, in the decoder's process; answer each unit with its rows and its refused messages."""
        while True:
            document, contents = link.receive()
            for (number, size, _, of), content in zip(document["units"], contents, strict=True):
                messages: list[tuple[int, bytes, int]] = []
                start = 0
                for place, (length, schema) in enumerate(zip(of["sizes"], of["schemas"], strict=True)):
                    messages.append((place, bytes(content[start : start + length]), schema))
                    start += length
                found: list[pa.Table] = []
                refused: list[tuple[int, str]] = []
                link.begin(number, size)
                self._decode(messages, found, refused)
                tables = [encoded_rows(t) for t in found]
                link.rest()
                link.send({"kind": "result", "settled": [number], "refused": refused}, tables)
            link.send({"kind": "ready"})

    def _decode(
        self, messages: Sequence[tuple[int, bytes, int]], found: list[pa.Table], refused: list[tuple[int, str]]
    ) -> None:
        """Decode all at once. If one of them is not a row, decode each half.

        Args:
            messages: The place, the payload and the number of the schema of each.
        """
        try:
            tables = self._rows([m[1] for m in messages], [m[2] for m in messages])
            if sum(t.num_rows for t in tables) != len(messages):
                raise BadFile("UnreadableMessage", "the message holds several objects, expected one")
            found += tables
        except MemoryError:
            raise
        except Exception as e:  # of any kind: the bytes are someone else's
            if len(messages) == 1:
                refused.append((messages[0][0], _why(e)))
                return
            half = len(messages) // 2
            for part in (messages[:half], messages[half:]):
                self._decode(part, found, refused)

    def _rows(self, values: Sequence[bytes], numbers: Sequence[int]) -> list[pa.Table]:
        """The rows.

        Raises:
            BadFile: Any of the messages is not a row.
        """
        match self.source.format:
            case MessageFormat.JSON:
                return [self._from_json(values)]
            case MessageFormat.AVRO:
                return [self._from_avro(part, n) for n, part in _by_schema(values, numbers)]

    def _from_json(self, values: Sequence[bytes]) -> pa.Table:
        joined = b"\n".join(map(_one_line, values)) + b"\n"
        ignore = self.source.unknown_fields is UnknownFields.IGNORE
        opened = open_json(
            TextFile(io.BytesIO(joined), nesting=self.limits.nesting), self.target.columns, ignore_unknown=ignore
        )
        rows = pa.concat_tables(opened.tables, promote_options="default")
        return self.target.fitted(rows, self.batch_id, typed=False)

    def _from_avro(self, values: Sequence[bytes], number: int) -> pa.Table:
        records = Records.of(self.schemas[number], self.target.columns)
        rows = records.rows([_record(v, records.physical) for v in values])
        if self.source.unknown_fields is UnknownFields.IGNORE:
            rows = rows.select([n for n in rows.column_names if n in self.target.columns.names])
        return self.target.fitted(rows, self.batch_id, typed=True)


def _why(error: Exception) -> str:
    if isinstance(error, BadFile):
        # A message is no file, and has one row and no lines.
        reason = "UnreadableMessage" if error.reason == "UnreadableFile" else error.reason
        return f"{reason}: {error.message.removeprefix('row 0: ').removesuffix(' per line')}"
    return f"UnreadableMessage: its values cannot be read ({type(error).__name__})"


def _one_line(value: bytes) -> bytes:
    """A JSON object as one line.

    Raises:
        BadFile: It is certainly none.
    """
    text = value.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")):
        refuse_other_value(text)
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
        record: Any = fastavro.schemaless_reader(stream, schema, handle_unicode_errors=UNICODE_ERRORS)
    except MemoryError:
        raise
    except Exception as e:  # of any kind: the bytes are someone else's
        raise BadFile("UnreadableMessage", f"the message is not readable as Avro ({type(e).__name__})") from None
    if stream.tell() != len(value):
        raise BadFile("UnreadableMessage", "the message is longer than its Avro record")
    return record


def _by_schema(values: Sequence[bytes], numbers: Sequence[int]) -> list[tuple[int, list[bytes]]]:
    messages_by_schema: dict[int, list[bytes]] = {}
    for value, number in zip(values, numbers, strict=True):
        messages_by_schema.setdefault(number, []).append(value)
    return list(messages_by_schema.items())
