"""The rows of all walks, and the mark that identifies each of them. Pure.

The mark of a row is `<batch>~<v>` in the column `name`. It is short enough not to be truncated in manifests, and unlikely to
occur in a file by chance. A redacted row has no mark; here its day is negative.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final, TypeAlias

import pyarrow as pa

Row: TypeAlias = tuple[str | None, int, int]  # batch id, v, day
Rows: TypeAlias = Counter[Row]

KEYS: Final = 100  # of a batch
FOREIGN: Final = 500_000  # the lowest v of rows of other writers; batch ids of up to two characters have lower ones
COLUMNS: Final = "v bigint, day int, name string, batch_id string"
WRITTEN: Final = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("name", pa.string())])
WHOLE: Final = WRITTEN.append(pa.field("batch_id", pa.string()))
CHANGES: Final = WRITTEN.append(pa.field("op", pa.string()))
_MARK: Final = re.compile(rb"([A-Za-z0-9]{0,8})~([0-9]{1,9})(?![0-9])")


def mark_of(row: Row) -> str:
    return f"{row[0] or ''}~{row[1]}"


def key_of(mark: str) -> int:
    return int(mark.partition("~")[2])


def batch_of(mark: str) -> str:
    return mark.partition("~")[0]


def marks_in(content: bytes) -> frozenset[str]:
    return frozenset(f"{b.decode()}~{v.decode()}" for b, v in _MARK.findall(content))


def rows_of(batch_id: str, rows: int) -> Rows:
    """The rows that a producer writes for a batch, on days 1 and 2. Each batch has keys of its own."""
    assert rows <= KEYS
    return Counter((batch_id, int(batch_id, 36) * KEYS + n, 1 + n % 2) for n in range(rows))


def changed_rows(by: str, keys: Iterable[int]) -> Rows:
    """The rows that change data adds for these keys."""
    return Counter((by, v, 1 + v % 2) for v in keys)


def foreign_rows(ids: Collection[str | None], day: int, nth: int) -> Rows:
    """The rows of the n-th foreign append. Their keys are unique."""
    return Counter((i, FOREIGN + 10 * nth + n, day) for n, i in enumerate(ids))


def as_arrow(rows: Rows, schema: pa.Schema = WHOLE) -> pa.Table:
    values = [{"v": r[1], "day": r[2], "name": mark_of(r), "batch_id": r[0]} for r in sorted(rows.elements(), key=str)]
    return pa.Table.from_pylist([{k: v for k, v in row.items() if k in schema.names} for row in values], schema)


def changes_table(by: str, changes: Iterable[tuple[str, int]]) -> pa.Table:
    """What a producer writes for a Replay with the key column `v`: a row for each operation and key."""
    rows = [(op, (by, v, 1 + v % 2)) for op, v in changes]
    values = [{"v": row[1], "day": row[2], "name": mark_of(row), "op": op} for op, row in rows]
    return pa.Table.from_pylist(values, CHANGES)


def of_values(found: Iterable[dict[str, Any]]) -> Rows:
    """The rows that a reader returned, after checking their marks."""
    rows: Rows = Counter()
    for r in found:
        row = (r["batch_id"], r["v"], r["day"])
        assert r["name"] in (mark_of(row), None), f"the row {row} has the name {r['name']}"
        rows[row if r["name"] is not None else redacted(row)] += 1
    return rows


def redacted(row: Row) -> Row:
    """The row without its mark."""
    return row[0], row[1], -abs(row[2])


def without(rows: Rows, ids: Collection[str | None]) -> Rows:
    return Counter({row: n for row, n in rows.items() if row[0] not in ids})


def of_day(rows: Rows, day: int) -> Rows:
    return Counter({row: n for row, n in rows.items() if abs(row[2]) == day})


def of_keys(rows: Rows, keys: Collection[int]) -> Rows:
    return Counter({row: n for row, n in rows.items() if row[1] in keys})


def of_marks(rows: Rows, marks: Collection[str]) -> Rows:
    return Counter({row: n for row, n in rows.items() if row[2] > 0 and mark_of(row) in marks})
