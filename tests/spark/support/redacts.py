"""Redacts of people's data in trips, and what readers see of the values afterwards."""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import lethe
import lethe_spark
from lethe.contract.run import ColumnRedaction, Redaction, RestatementRequest
from lethe.contract.settings import RedactionMethod

from tests.spark.support.erases import name_of
from tests.spark.support.trips import Trips, customer, passenger, ticket
from tests.support.builders import a_request

KEY = b"a key of at least sixteen bytes"
NULL = RedactionMethod.SET_NULL
HASH = RedactionMethod.KEYED_HASH
PERSONAL: Mapping[str, RedactionMethod | str] = {
    "customer.email": NULL,
    "passengers.element.email": HASH,
    "ticket.id": "removed",
}
"""By column: how it is redacted; a text is a constant."""


def hashed(value: str, key: bytes = KEY) -> str:
    return hmac.new(key, value.encode(), hashlib.sha256).hexdigest()


def redaction(story: Trips, columns: Mapping[str, RedactionMethod | str] = PERSONAL) -> Redaction:
    key = story.lake.home / "hash-key"
    key.write_bytes(KEY)
    methods = {
        column: (how, None) if isinstance(how, RedactionMethod) else (RedactionMethod.CONSTANT, how)
        for column, how in columns.items()
    }
    has_hash = HASH in columns.values()
    return Redaction(
        columns=tuple(ColumnRedaction(column=c, method=m, value=v) for c, (m, v) in methods.items()),
        hash_key_file=str(key) if has_hash else "",
        secret="hash-2026" if has_hash else "",
        secret_key="key" if has_hash else "",
    )


def a_redact(
    story: Trips,
    *values: str,
    column: str = "ticket.id",
    name: str = "redact",
    columns: Mapping[str, RedactionMethod | str] = PERSONAL,
    **changes: Any,
) -> RestatementRequest:
    """Of the rows with one of these values."""
    erase = story.an_erase(*values, name=name, column=column)
    return a_request(name, "Redact", batch_ids=(), rows=erase.rows, **{"redact": redaction(story, columns), **changes})


def a_redact_of(story: Trips, *batch_ids: str, name: str = "redact", **changes: Any) -> RestatementRequest:
    """Of whole batches."""
    columns = changes.pop("columns", PERSONAL)
    return a_request(name, "Redact", batch_ids=batch_ids, redact=redaction(story, columns), **changes)


def personal(v: int) -> list[str]:
    """All that names the people of a trip."""
    return [customer(v), f"first {name_of(v)}", passenger(v), ticket(v)]


def people(row: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Of a row: what customer, passengers and ticket say."""
    emails = None if row["passengers"] is None else [p["email"] for p in row["passengers"]]
    return (row["customer"] or {}).get("email"), emails, row["ticket.id"]


def unredacted(v: int) -> tuple[Any, Any, Any]:
    if v % 3 == 2:
        return None, None, ticket(v)
    return customer(v), [f"first {name_of(v)}", passenger(v)], ticket(v)


def as_redacted(v: int) -> tuple[Any, Any, Any]:
    """By PERSONAL."""
    if v % 3 == 2:
        return None, None, "removed"
    return None, [hashed(f"first {name_of(v)}"), hashed(passenger(v))], "removed"


def people_by_row(story: Trips) -> dict[int, tuple[Any, Any, Any]]:
    """What readers find, by `v`: Lethe's two readers agree, but only Spark reads Avro. Lists without people count as null."""
    by_spark = lethe_spark.read(story.spark, story.full_name).collect()
    rows = {r["v"]: _plain(people(r.asDict(recursive=True))) for r in by_spark}
    assert len(rows) == len(by_spark)
    if story.properties.get("write.format.default") != "avro":
        scanned = lethe.scan(story.full_name).to_arrow().to_pylist()
        assert {r["v"]: _plain(people(r)) for r in scanned} == rows
        assert len(scanned) == len(rows)
    return rows


def _plain(found: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    email, emails, ticket_id = found
    return email, emails or None, ticket_id
