"""An object that kills or stalls whatever reads it ends a decoder, and is named; the others are read."""

import io
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.erasure.strays import OTHER, UNKNOWN, StrayContent
from lethe.search.strays import contents_of
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.support.poison import encrypted, many_lists

SCHEMA = Schema(NestedField(1, "v", LongType()), NestedField(2, "batch_id", StringType()))


def rows(*ids: str) -> pa.Table:
    fields = [pa.field("batch_id", pa.string(), metadata={b"PARQUET:field_id": b"2"})]
    return pa.table([list(ids)], schema=pa.schema(fields))


def parquet(*ids: str) -> bytes:
    out = io.BytesIO()
    pq.write_table(rows(*ids), out)
    return out.getvalue()


def contents(objects: dict[str, bytes]) -> dict[str, StrayContent | None]:
    return dict(contents_of(objects, lambda path: io.BytesIO(objects[path]), 2, SCHEMA))


def test_objects_that_end_their_reader_are_named_and_the_others_are_read() -> None:
    found = contents(
        {
            "t/data/1.parquet": parquet("A", "C"),
            "t/data/crash.parquet": encrypted(rows("A"), plaintext_footer=True),
            "t/data/2.parquet": parquet("B"),
            "t/_runs/bomb.json": many_lists(),
            "t/data/3": b"text",
        }
    )

    assert found == {
        "t/data/1.parquet": StrayContent(True, "A", "C"),
        "t/data/crash.parquet": StrayContent(costly="it ends the decoder (SIGABRT)"),
        "t/data/2.parquet": StrayContent(True, "B", "B"),
        "t/_runs/bomb.json": StrayContent(costly="decoding it takes more than 512 MiB of memory"),
        "t/data/3": OTHER,
    }


def test_of_a_large_file_only_the_footer_is_fetched() -> None:
    content = parquet(*(f"{n:06}" for n in range(200_000)))
    fetched: list[int] = []

    class Counting(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            found = super().read(size)
            fetched.append(len(found))
            return found

    ((_, found),) = contents_of(["a"], lambda _: Counting(content), 2, SCHEMA)

    assert found == StrayContent(True, "000000", "199999")
    assert sum(fetched) <= 2 * 64 * 1024 < len(content)


def test_an_object_that_cannot_be_fetched_is_none_and_the_others_are_read() -> None:
    """Whether the storage fails at once, or later."""

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if 64 * 1024 <= self.tell() < 1024**2 - 64 * 1024:
                raise OSError("away")
            return super().read(size)

    def open_object(path: str) -> BinaryIO | None:
        match path:
            case "away":
                raise OSError("away")
            case "later":
                return Failing(b"x" * 1024**2)
            case "gone":
                return None
        return io.BytesIO(b"PAR1 and no more")

    found = dict(contents_of(["away", "later", "gone", "there"], open_object, 2, SCHEMA))

    assert found == {"away": None, "later": None, "gone": None, "there": UNKNOWN}
