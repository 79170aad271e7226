"""Framed Avro messages, with schemas of a real schema registry."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from lethe.base.errors import TransientError
from lethe.ingest.buffer_store import BadFile
from lethe_inlet.decoding import Schemas
from lethe_inlet.settings import Registry
from lethe_operator.reasons import Reason

from tests.support.servers import registry
from tests.support.servers.kafka import Broker
from tests.support.servers.registry import SchemaRegistry
from tests.support.streams import Stream
from tests.support.tables import catalog_in

pytestmark = pytest.mark.long  # the registry is a download of 104 MB

NARROW: dict[str, Any] = {"type": "record", "name": "flight", "fields": [{"name": "v", "type": "int"}]}
WIDE: dict[str, Any] = {"type": "record", "name": "flight", "fields": [{"name": "v", "type": "long"}]}
OTHER: dict[str, Any] = {"type": "record", "name": "other", "fields": [{"name": "w", "type": "long"}]}


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    with registry.running(tmp_path_factory.mktemp("registry")) as made:
        yield made


def framed(number: int, schema: Any, record: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return b"\x00" + number.to_bytes(4, "big") + stream.getvalue()


def test_messages_of_several_schemas_are_rows_of_one_table(
    broker: Broker, schemas: SchemaRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    broker.create_topic("framed", partitions=1)
    narrow, wide, other = (schemas.register(f"s{n}", s) for n, s in enumerate((NARROW, WIDE, OTHER)))
    unknown = max(narrow, wide, other) + 1000
    stream = Stream(broker, "framed", catalog_in(tmp_path), tmp_path / "buffer", registry=schemas.url)
    stream.create_table()
    stream.produce(
        [
            framed(narrow, NARROW, {"v": 1}),
            framed(wide, WIDE, {"v": 2**40}),
            framed(other, OTHER, {"w": 3}),
            framed(unknown, WIDE, {"v": 4}),
            b"not framed",
            framed(narrow, NARROW, {"v": 5}),
        ]
    )

    stream.read(3, format="Avro", framing="SchemaRegistry")

    assert stream.values == [1, 5, 2**40]
    assert [(r["offset"], r["reason"].partition(":")[0]) for r in stream.refused] == [
        (2, "SchemaMismatch"),
        (3, "SchemaNotFound"),
        (4, "NotFramed"),
    ]


def test_a_registry_that_is_away_refuses_nothing(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    broker.create_topic("away", partitions=1)
    stream = Stream(broker, "away", catalog_in(tmp_path), tmp_path / "buffer", registry="http://127.0.0.1:9")
    stream.create_table()
    stream.produce([framed(1, NARROW, {"v": 1})])

    with stream.running(stream.source(format="Avro", framing="SchemaRegistry")):
        stream.wait_for(Reason.REGISTRY_AWAY)

    assert stream.refused == []


def test_schemas_are_asked_for_once_and_other_kinds_are_no_avro(schemas: SchemaRegistry) -> None:
    known = Schemas(Registry(url=schemas.url))
    number = schemas.register("once", WIDE)
    json_schema = schemas.register(
        "json", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}, "JSON"
    )

    assert known.get(number) is known.get(number)
    with pytest.raises(BadFile, match="not an Avro schema"):
        known.get(json_schema)
    with pytest.raises(TransientError, match="RegistryAway"):
        Schemas(Registry(url="http://127.0.0.1:9")).get(1)
