"""Tools of other tests: rows of the random walks, values in compressed files, the check of queries of Prometheus."""

import gzip
import io

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.file_contents import decoded
from tests.support.promql import Names, names_in, unknown

VALUE = "Ada Lovelace of Marylebone"


def as_avro() -> bytes:
    schema = {"type": "record", "name": "r", "fields": [{"name": "meta", "type": {"type": "map", "values": "bytes"}}]}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, [{"meta": {"who": VALUE.encode()}}] * 50, codec="deflate")
    return sink.getvalue()


def as_parquet() -> bytes:
    sink = io.BytesIO()
    names = [f"{VALUE} {n % 7}" for n in range(1000)]
    pq.write_table(pa.table({"name": names}), sink, compression="zstd", use_dictionary=False, write_statistics=False)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m0.avro", as_avro()),
        ("data.parquet", as_parquet()),
        ("v1.gz.metadata.json", gzip.compress(VALUE.encode())),
    ],
    ids=["avro", "parquet", "json"],  # the same in each process: gzip writes the time
)
def test_a_value_is_found(name: str, content: bytes) -> None:
    assert VALUE.encode() in decoded(name, content)


def test_other_files_are_their_own_text() -> None:
    assert decoded("v1.metadata.json", VALUE.encode()) == b""


EXPOSED = {"a_total": frozenset({"namespace", "kind"}), "b_bucket": frozenset({"le"}), "c": frozenset({"kind"})}


def test_metrics_matchers_and_lists_of_labels_are_found() -> None:
    found = names_in('sum by (kind) (rate(a_total{namespace=~"$n", kind!="x{y}"}[5m])) / on (kind) c > 0.1')

    assert found == Names({"a_total": frozenset({"namespace", "kind"}), "c": frozenset()}, frozenset({"kind"}))


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("histogram_quantile(0.95, sum by (le) (rate(b_bucket[5m])))", []),
        ("max(c) == 0 unless c offset 5m", []),
        ("absent(gone)", ["no process exposes gone"]),
        ('c{namespace="x"}', ["c has no label namespace"]),
        ("sum by (dataset) (c)", ["c has no label dataset"]),
        ("a_total and on (instance) c", []),
        ("count by (kind, x) (a_total == 0)", ["a_total has no label x"]),
    ],
)
def test_what_no_process_exposes_is_named(expression: str, said: list[str]) -> None:
    assert unknown(expression, EXPOSED) == said


def test_an_expression_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ValueError, match="no metric before it"):
        names_in('{job="x"}')
