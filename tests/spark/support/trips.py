"""A Dataset whose rows have people in structs and lists, and a column whose own name has a dot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lethe.contract.run import Replacement, RestatementRequest

from tests.spark.support.erases import Names, name_of
from tests.spark.support.story import Row, some_rows
from tests.support.builders import a_request
from tests.support.lake import BufferFolder

COLUMNS = (
    "v bigint, day int, customer struct<email: string, country: string>, "
    "passengers array<struct<seat: int, email: string>>, `ticket.id` string, batch_id string"
)
_CUSTOMER = pa.struct([("email", pa.string()), ("country", pa.string())])
_PASSENGER = pa.struct([("seat", pa.int32()), ("email", pa.string())])
TRIPS = pa.schema(
    [
        ("v", pa.int64()),
        ("day", pa.int32()),
        ("customer", _CUSTOMER),
        ("passengers", pa.list_(_PASSENGER)),
        ("ticket.id", pa.string()),
    ]
)


def customer(v: int) -> str:
    return f"customer {name_of(v)}"


def passenger(v: int) -> str:
    """The second of two."""
    return f"second {name_of(v)}"


def ticket(v: int) -> str:
    return f"ticket {name_of(v)}"


def trip(v: int, day: int) -> dict[str, Any]:
    """Each third row is without people."""
    some_people = [{"seat": 1, "email": f"first {name_of(v)}"}, {"seat": 2, "email": passenger(v)}]
    return {
        "v": v,
        "day": day,
        "customer": None if v % 3 == 2 else {"email": customer(v), "country": ("DE", "FR")[day % 2]},
        "passengers": ([], None)[day % 2] if v % 3 == 2 else some_people,
        "ticket.id": ticket(v),
    }


@dataclass(frozen=True)
class Trips(Names):
    """Batches of trips."""

    columns: str = COLUMNS

    def put(self, *batch_ids: str, rows: int = 4, files: int = 1) -> None:
        for batch_id in batch_ids:
            trips = [trip(r["v"], r["day"]) for r in some_rows(batch_id, rows)]
            self.buffer.put(batch_id, pa.Table.from_pylist(trips, TRIPS), files)

    def a_replay_by(self, keys: Sequence[str], *rows: Row, by: str = "C1") -> RestatementRequest:
        """Replace the rows with the keys of these rows by these, with other passengers."""
        trips = [{**trip(v, day), "passengers": [], "op": "U"} for _, v, day in rows]
        changes = pa.Table.from_pylist(trips, TRIPS.append(pa.field("op", pa.string())))
        folder = BufferFolder(self.lake.home / "restated" / self.name).put(by, changes, 1)
        replacement = Replacement(batch_id=by, uri=f"file://{folder}", key_columns=tuple(keys), op_column="op")
        return a_request(f"change-{by}", "Replay", batch_ids=(), replacement=replacement)
