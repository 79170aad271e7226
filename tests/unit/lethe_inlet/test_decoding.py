"""A message is a row of the table, exactly, or it is refused with a reason; the others are rows."""

import io
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import TransientError
from lethe.contract.dataset import KafkaSource
from lethe.contract.settings import Framing, MessageFormat, SchemaEvolution, UnknownFields
from lethe.decoder.limits import Limits
from lethe.ingest.buffer_store import BadFile
from lethe_inlet.decoding import AT_ONCE, MISSING_SECONDS, Decoder, RowTarget, Schemas
from lethe_inlet.epochs import Decoded, KafkaPartition, TopicMessage, refusals
from lethe_inlet.settings import Registry

COLUMNS = pa.schema(
    [
        pa.field("v", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("batch_id", pa.string()),
    ]
)
TARGET = RowTarget(COLUMNS, "batch_id", SchemaEvolution.REFUSE)
ID = "flights-0-000000000000-000000000009"
RECORD = {
    "type": "record",
    "name": "flight",
    "fields": [
        {"name": "v", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}


def messages(*values: bytes | None) -> list[TopicMessage]:
    return [TopicMessage(n, 1_700_000_000_000, b"k", v) for n, v in enumerate(values)]


def json_source(**more: Any) -> KafkaSource:
    return KafkaSource(cluster="main", topics=("flights",), format=MessageFormat.JSON, **more)


def avro_source(schema: Any = RECORD, **more: Any) -> KafkaSource:
    return KafkaSource(
        cluster="main", topics=("flights",), format=MessageFormat.AVRO, schema=json.dumps(schema), **more
    )


def decoded(source: KafkaSource, *values: bytes | None, target: RowTarget = TARGET) -> Decoded:
    return Decoder(source).decode(messages(*values), target, ID)


def reasons(found: Decoded) -> dict[int, str]:
    return {r.message.offset: r.reason.partition(":")[0] for r in found.refused}


def avro(record: Any, schema: Any = RECORD) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return stream.getvalue()


# --- JSON -------------------------------------------------------------------------------------------------------------
def test_json_objects_are_rows_with_the_tables_types() -> None:
    found = decoded(
        json_source(), b'{"v": 1, "name": "a", "price": "1.10", "at": "2013-01-01T10:00:00Z"}', b' {"v": 2} '
    )

    assert found.refused == []
    assert found.rows.schema.names == ["v", "name", "price", "at"]
    assert found.rows.column("v").to_pylist() == [1, 2]
    assert found.rows.column("price").to_pylist() == [Decimal("1.10"), None]


def test_line_breaks_between_tokens_are_no_lines() -> None:
    found = decoded(json_source(), b'{\n  "v": 1,\r\n "name": "a b"\n}')

    assert found.rows.select(["v", "name"]).to_pylist() == [{"v": 1, "name": "a b"}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "NoValue"),
        (b"", "UnreadableMessage"),
        (b"null", "UnreadableMessage"),
        (b"[1]", "UnreadableMessage"),
        (b'{"v": 1} {"v": 2}', "UnreadableMessage"),
        (b'{"v": 1}\n{"v": 2}', "UnreadableMessage"),
        (b'{"v": 1}}', "UnreadableMessage"),
        (b'{"v": 1, "name": "line\nbreak"}', "UnreadableMessage"),
        (b'{"v": 1, "name": "\xff"}', "UnreadableMessage"),
        (b'{"v": "one"}', "SchemaMismatch"),
        (b'{"v": 1.5}', "SchemaMismatch"),
        (b'{"v": null}', "SchemaMismatch"),
        (b'{"name": "a"}', "SchemaMismatch"),
        (b'{"v": 1, "at": "2013-01-01T10:00:00"}', "SchemaMismatch"),
        (b'{"v": 1, "other": 2}', "SchemaMismatch"),
        (b'{"v": 1, "batch_id": "mine"}', "BatchIdMismatch"),
    ],
)  # fmt: skip
def test_a_message_that_is_no_row_is_refused_alone(value: bytes | None, reason: str) -> None:
    found = decoded(json_source(), b'{"v": 1}', value, b'{"v": 3}')

    assert found.rows.column("v").to_pylist() == [1, 3]
    assert reasons(found) == {1: reason}
    assert "mine" not in found.refused[0].reason
    assert "column other" not in found.refused[0].reason


def test_unknown_fields_may_be_left_out() -> None:
    found = decoded(json_source(unknownFields=UnknownFields.IGNORE), b'{"v": 1, "other": {"a": 2}}', b'{"v": 2}')

    assert found.rows.column("v").to_pylist() == [1, 2]
    assert found.refused == []


@given(st.lists(st.booleans(), max_size=12))
def test_every_message_is_a_row_or_refused(good: list[bool]) -> None:
    values = [b'{"v": %d}' % n if ok else b'{"v": "x"}' for n, ok in enumerate(good)]

    found = decoded(json_source(), *values)

    rows = found.rows.column("v").to_pylist() if found.rows.num_rows else []
    assert rows == [n for n, ok in enumerate(good) if ok]
    assert [r.message.offset for r in found.refused] == [n for n, ok in enumerate(good) if not ok]


def test_many_messages_are_decoded_piece_by_piece() -> None:
    values = [b'{"v": %d}' % n for n in range(AT_ONCE + 10)]
    values[AT_ONCE + 3] = b"{}"

    found = decoded(json_source(), *values)

    assert found.rows.num_rows == AT_ONCE + 9
    assert list(reasons(found)) == [AT_ONCE + 3]


# --- Avro -------------------------------------------------------------------------------------------------------------
def test_avro_records_are_rows() -> None:
    found = decoded(avro_source(), avro({"v": 1, "name": "a", "price": Decimal("1.10"), "at": None}))

    assert found.refused == []
    assert found.rows.select(["v", "name", "price"]).to_pylist() == [{"v": 1, "name": "a", "price": Decimal("1.10")}]


@pytest.mark.parametrize(
    "value", [b"", b"\x02", b"\xff" * 30, avro({"v": 1, "name": None, "price": None, "at": None}) + b"!"]
)
def test_bytes_that_are_no_record_are_refused_alone(value: bytes) -> None:
    good = avro({"v": 7, "name": None, "price": None, "at": None})

    found = decoded(avro_source(), good, value, good)

    assert found.rows.column("v").to_pylist() == [7, 7]
    assert reasons(found) == {1: "UnreadableMessage"}


def test_a_field_that_the_table_lacks_needs_schema_evolution() -> None:
    schema = {**RECORD, "fields": [*RECORD["fields"], {"name": "gate", "type": "int"}]}  # type: ignore[misc]
    value = avro({"v": 1, "name": None, "price": None, "at": None, "gate": 5}, schema)

    assert reasons(decoded(avro_source(schema), value)) == {0: "SchemaMismatch"}
    adding = RowTarget(COLUMNS, "batch_id", SchemaEvolution.ADD_COLUMNS)
    assert decoded(avro_source(schema), value, target=adding).rows.column("gate").to_pylist() == [5]
    ignoring = avro_source(schema, unknownFields=UnknownFields.IGNORE)
    assert decoded(ignoring, value).rows.column_names == ["v", "name", "price", "at"]


class _Registry(Schemas):
    def __init__(self, schemas: Sequence[Any]) -> None:
        self._schemas = [fastavro.parse_schema(s) for s in schemas]

    def get(self, number: int) -> Any:
        return self._schemas[number]


@pytest.mark.parametrize(
    ("types", "gates", "rows", "refused"),
    [
        (("int", "string"), (5, "B5"), [5], {1: "SchemaMismatch"}),
        (("int", "float"), (16_777_217, 1.5), [16_777_217], {1: "SchemaMismatch"}),
        (("bytes", "string"), (b"B", "5"), [b"B"], {1: "SchemaMismatch"}),
        (("int", "long"), (5, 2**40), [5, 2**40], {}),
        (("long", "int"), (2**40, 5), [2**40, 5], {}),
    ],
)  # fmt: skip
def test_a_column_that_messages_add_has_one_type(
    types: tuple[str, str], gates: tuple[Any, Any], rows: list[Any], refused: dict[int, str]
) -> None:
    """Producers of two releases add a column with different types. A batch cannot hold both, and reading goes on."""
    fields: Any = RECORD["fields"]
    schemas = [{**RECORD, "fields": [*fields, {"name": "gate", "type": t}]} for t in types]
    values = [
        b"\0" + n.to_bytes(4, "big") + avro({"v": n, "name": None, "price": None, "at": None, "gate": gate}, schemas[n])
        for n, gate in enumerate(gates)
    ]
    source = KafkaSource(cluster="main", topics=("t",), format=MessageFormat.AVRO, framing=Framing.SCHEMA_REGISTRY)
    adding = RowTarget(COLUMNS, "batch_id", SchemaEvolution.ADD_COLUMNS)

    found = Decoder(source, _Registry(schemas)).decode(messages(*values), adding, ID)

    assert found.rows.column("gate").to_pylist() == rows
    assert reasons(found) == refused


def test_a_schema_that_the_registry_gets_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica of a registry may not have a new schema yet. Messages of an unknown one cost no request each."""
    now, asked = [0.0], list[str]()
    answers: dict[int, requests.Response] = {}

    def answer(url: str, **_: Any) -> requests.Response:
        asked.append(url)
        return answers.get(int(url.rpartition("/")[2]), _answer(404, {}))

    monkeypatch.setattr("lethe_inlet.decoding.requests.get", answer)
    schemas = Schemas(Registry(url="http://registry"), clock=lambda: now[0])

    for _ in range(3):
        with pytest.raises(BadFile, match="no schema 7"):
            schemas.get(7)
    answers[7] = _answer(200, {"schema": json.dumps(RECORD)})
    now[0] = MISSING_SECONDS

    assert schemas.get(7)["name"] == "flight"
    assert schemas.get(7)["name"] == "flight"
    assert len(asked) == 2


def _answer(status: int, body: Any) -> requests.Response:
    made = requests.Response()
    made.status_code, made._content = status, json.dumps(body).encode()
    return made


def test_a_schema_that_is_none_stops_reading() -> None:
    """Nothing is refused for a mistake in the Dataset."""
    with pytest.raises(TransientError, match=r"InvalidSchema.*spec.source.kafka.schema"):
        decoded(avro_source("long"), b"\x02")


def test_framing_needs_a_registry() -> None:
    source = KafkaSource(cluster="main", topics=("t",), format=MessageFormat.AVRO, framing=Framing.SCHEMA_REGISTRY)

    with pytest.raises(TransientError, match=r"NoSchemaRegistry.*main"):
        decoded(source, b"\x00\x00\x00\x00\x01\x02")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(b"\x00\x00\x00\x00\x07" + b'{"v": 1}', {}), (b'{"v": 1}', {0: "NotFramed"}), (b"\x00", {0: "NotFramed"})],
)
def test_json_may_be_framed(value: bytes, wanted: dict[int, str]) -> None:
    assert reasons(decoded(json_source(framing=Framing.SCHEMA_REGISTRY), value)) == wanted


# --- the file of refused messages -------------------------------------------------------------------------------------
def test_refused_messages_can_be_read_back() -> None:
    found = decoded(json_source(), b'{"v": "x"}', None)

    lines: Sequence[Any] = [
        json.loads(line) for line in refusals(KafkaPartition("flights", 3), found.refused).splitlines()
    ]

    assert [(x["topic"], x["partition"], x["offset"], x["key"]) for x in lines] == [
        ("flights", 3, 0, "aw=="),
        ("flights", 3, 1, "aw=="),
    ]
    assert [x["value"] for x in lines] == ["eyJ2IjogIngifQ==", None]


# --- messages that end the process that decodes them ---
def test_a_message_that_is_nested_too_deep_is_refused_and_the_others_are_rows() -> None:
    deep = b'{"v": 3, "name": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}"

    found = decoded(json_source(), b'{"v": 1}', deep, b'{"v": 2}')

    assert found.rows.column("v").to_pylist() == [1, 2]
    assert reasons(found) == {1: "FileTooCostly"}


def test_a_message_that_crashes_its_decoder_is_found_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lethe_inlet.decoding.limits_here", lambda: Limits(nesting=10**6))
    crashes = b'{"v": 3, "x": ' + b'{"a":' * 30_000 + b"1" + b"}" * 30_000 + b"}"
    values = [b'{"v": %d}' % n for n in range(8)]
    values[5] = crashes

    found = decoded(json_source(), *values)

    assert found.rows.column("v").to_pylist() == [0, 1, 2, 3, 4, 6, 7]
    assert [(r.message.offset, r.reason) for r in found.refused] == [
        (5, "FileTooCostly: it ends the decoder (SIGSEGV)")
    ]


def test_an_avro_message_that_expands_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lethe_inlet.decoding.limits_here", lambda: Limits(memory_bytes=32 * 2**20))
    of_nulls = {"type": "record", "name": "r", "fields": [{"name": "v", "type": {"type": "array", "items": "null"}}]}
    endless = b"\x80\x80\x80\x80\x80\x80\x80\x80\x01\x00"  # 2^49 items of no bytes

    assert reasons(decoded(avro_source(of_nulls), endless)) == {0: "FileTooCostly"}
