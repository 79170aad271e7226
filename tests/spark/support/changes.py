"""Record-level change data for a Dataset whose rows have names, and the rows that a dict holds after the changes."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lethe.contract.result import RequestResult
from lethe.contract.run import Replacement, RestatementRequest

from tests.spark.support.erases import NAMED, Names, name_of, row
from tests.spark.support.story import Row, of_batches
from tests.support.builders import a_request
from tests.support.lake import BufferFolder

CHANGES = NAMED.append(pa.field("op", pa.string()))
Change = tuple[str | None, Row]  # what becomes of it, and the row; its batch is not written


def upsert(of: Row, day: int | None = None) -> Change:
    """Write the row again, by default on the same day. Its key is `v`."""
    return "U", (of[0], of[1], of[2] if day is None else day)


def delete(of: Row) -> Change:
    return "D", of


def changed(changes: Sequence[Change], by: str, batches: Sequence[str] = ("A", "B", "D")) -> Counter[Row]:
    """The rows of these batches after the changes by `v`."""
    keys = {r[1] for _, r in changes}
    kept = Counter({r: n for r, n in of_batches(*batches).items() if r[1] not in keys})
    return kept + Counter((by, r[1], r[2]) for op, r in changes if op != "D")


@dataclass(frozen=True)
class Changing(Names):
    """Batches A, B and D, and changes of their rows."""

    def changes(self, batch_id: str, changes: Sequence[Change], files: int = 1, **more: Any) -> Replacement:
        rows = [{"v": v, "day": day, "name": name_of(v), "op": op} for op, (_, v, day) in changes]
        return self.put_changes(batch_id, pa.Table.from_pylist(rows, CHANGES), files, **more)

    def put_changes(
        self,
        batch_id: str,
        rows: pa.Table,
        files: int = 1,
        keys: Sequence[str] = ("v",),
        op: str = "op",
    ) -> Replacement:
        folder = BufferFolder(self.lake.home / "restated" / self.name).put(batch_id, rows, files)
        return Replacement(batch_id=batch_id, uri=f"file://{folder}", key_columns=tuple(keys), op_column=op)

    def a_change(
        self, *changes: Change, by: str = "C1", batch_ids: Sequence[str] = (), name: str = "", **more: Any
    ) -> RestatementRequest:
        replacement = self.changes(by, changes)
        return a_request(name or f"change-{by}", "Replay", batch_ids=tuple(batch_ids), replacement=replacement, **more)

    def change(self, *changes: Change, by: str = "C1", **at: Callable[[], object]) -> RequestResult:
        return self.restate(self.a_change(*changes, by=by), **at)


# Of two batches, on both days, one that nobody has, and one that goes without being there.
SOME: tuple[Change, ...] = (
    upsert(row("A", 0), day=2),
    delete(row("B", 1)),
    (None, row("B", 2)),
    ("I", ("new", 7, 1)),
    delete(("nobody", 8, 1)),
)
