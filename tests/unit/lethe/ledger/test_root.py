"""A root that cannot be trusted is refused, with the file's name and what to do."""

import json
from typing import Any

import pytest
from lethe.base.errors import LedgerError
from lethe.ledger.root import FORMAT_VERSION, PARTS, Chunk, Root, Statistics, decode_root

from tests.support.builders import NOW

ROOT = Root(
    "uuid-1",
    3,
    "run-3",
    {
        "tombstones": (Chunk("t.avro", 2, 90, lower="A", upper="Z"), Chunk("r.avro", 1, 9, removes=True)),
        "batches": (Chunk("b.avro", 1, 5, header_bytes=3, snapshot_id=11),),
    },
    Statistics(1, 1, 0, {"promoted": 1}, NOW, None, 12),
)


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(ROOT.encode()), **changes}).encode()


def with_file(name: str) -> bytes:
    parts = json.loads(ROOT.encode())["parts"]
    parts["tombstones"][0]["file"] = name
    return changed(parts=parts)


def test_a_root_comes_back_with_every_part_named() -> None:
    decoded = decode_root(ROOT.encode(), "s3://t/_tombstones/r.json", "uuid-1")

    assert (decoded.table_uuid, decoded.ledger_version, decoded.run) == ("uuid-1", 3, "run-3")
    assert {k: v for k, v in decoded.parts.items() if v} == ROOT.parts
    assert set(decoded.parts) == set(PARTS)
    assert decoded.statistics == ROOT.statistics
    assert decoded.statistics.tombstoned_rows == 12


@pytest.mark.parametrize("counted", [{}, {"tombstoned-rows": None}], ids=["absent", "null"])
def test_a_root_whose_writer_counted_no_rows_is_read(counted: dict[str, Any]) -> None:
    statistics = json.loads(ROOT.encode())["statistics"]
    del statistics["tombstoned-rows"]

    decoded = decode_root(changed(statistics={**statistics, **counted}), "s3://t/_tombstones/r.json", "uuid-1")

    assert decoded.statistics.tombstoned_rows is None


REFUSED = {
    "too new": (changed(**{"format-version": FORMAT_VERSION + 1}), "LedgerTooNew", "Upgrade"),
    "of another table": (changed(**{"table-uuid": "uuid-2"}), "LedgerOfAnotherTable", "uuid-2"),
    "truncated": (ROOT.encode()[:-20], "LedgerUnreadable", "Restore"),
    "empty": (b"", "LedgerUnreadable", "Restore"),
    "not JSON": (b"Obj\x01\xff", "LedgerUnreadable", "Restore"),
    "a list": (b"[]", "LedgerUnreadable", "Restore"),
    "null": (b"null", "LedgerUnreadable", "Restore"),
    "without a version": (b"{}", "LedgerUnreadable", "Restore"),
    "with a version that is no number": (changed(**{"format-version": "1"}), "LedgerUnreadable", "Restore"),
    "without statistics": (changed(statistics=None), "LedgerUnreadable", "Restore"),
    "without a part": (changed(parts={"tombstones": []}), "LedgerUnreadable", "Restore"),
    "with no tombstone file": (
        changed(parts={**json.loads(ROOT.encode())["parts"], "tombstones": []}),
        "LedgerUnreadable",
        "tombstones",
    ),
    "up one folder": (with_file("../t.avro"), "LedgerUnreadable", "outside"),
    "at another place": (with_file("s3://other/t.avro"), "LedgerUnreadable", "outside"),
    "by backslash": (with_file("..\\t.avro"), "LedgerUnreadable", "outside"),
    "its own parent": (with_file(".."), "LedgerUnreadable", "outside"),
}


@pytest.mark.parametrize(("content", "reason", "expected_text"), REFUSED.values(), ids=REFUSED)
def test_a_root_that_cannot_be_trusted_is_refused(content: bytes, reason: str, expected_text: str) -> None:
    with pytest.raises(LedgerError, match=expected_text) as refused:
        decode_root(content, "s3://t/_tombstones/r.json", "uuid-1")

    assert refused.value.reason == reason
    assert "s3://t/_tombstones/r.json" in refused.value.message
