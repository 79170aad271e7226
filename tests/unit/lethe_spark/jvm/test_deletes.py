"""A deletion vector is written as Iceberg's specification frames it, and read back as it was."""

from hypothesis import given
from hypothesis import strategies as st
from lethe_spark.jvm.deletes import of_blob, to_blob
from pyiceberg.table.deletion_vector import DeletionVector, _extract_vector_payload
from pyroaring import FrozenBitMap64

positions = st.sets(st.integers(0, 2**33) | st.integers(0, 200), max_size=60).map(FrozenBitMap64)


@given(positions)
def test_what_is_written_is_read_back(wanted: FrozenBitMap64) -> None:
    assert of_blob(to_blob(wanted)) == wanted


@given(positions)
def test_other_libraries_read_the_same_positions(wanted: FrozenBitMap64) -> None:
    bitmaps = DeletionVector._deserialize_bitmap(_extract_vector_payload(to_blob(wanted)))

    assert [(high << 32) + low for high, bitmap in enumerate(bitmaps) for low in bitmap] == list(wanted)


def test_the_frame_is_that_of_the_specification() -> None:
    blob = to_blob(FrozenBitMap64([0]))

    assert blob[:4] == (len(blob) - 8).to_bytes(4, "big")
    assert blob[4:8] == bytes.fromhex("d1d33964")
