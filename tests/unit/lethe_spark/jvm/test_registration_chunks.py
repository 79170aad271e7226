"""Descriptions of files go to the JVM in chunks that its heap has room for."""

from lethe_spark.jvm.data_files import CHARACTERS_AT_ONCE, chunks


def test_documents_are_divided_by_their_length_and_keep_their_order() -> None:
    small, half, huge = "s", "h" * (CHARACTERS_AT_ONCE // 2), "x" * (2 * CHARACTERS_AT_ONCE)

    found = list(chunks([small, half, half, huge, small, small]))

    assert found == [[small, half], [half], [huge], [small, small]]
    assert list(chunks([])) == []
