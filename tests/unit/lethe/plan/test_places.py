"""Places are compared as places, whatever their spelling."""

import pytest
from lethe.plan.places import contains, local_path, overlap, without_values


@pytest.mark.parametrize(
    ("outer", "inner", "wanted"),
    [
        ("s3://lake/buffer", "s3://lake/buffer", True),
        ("s3://lake/buffer/", "s3://lake/buffer/x", True),
        ("s3://lake/buffer", "s3://lake/buffer2", False),
        ("s3://lake/buffer/x", "s3://lake/buffer", False),
        ("s3://lake", "s3://lake/buffer", True),
        ("s3://lake/", "s3://other/buffer", False),
        ("s3a://lake/buffer", "s3://lake/buffer/x", True),
        ("s3n://lake/buffer", "s3a://lake/buffer/x", True),
        ("file:/data", "file:///data/x", True),
        ("/data", "file:/data/x", True),
        ("file:///data", "/data2", False),
        ("file:///lake/buffer", "s3://lake/buffer", False),
        ("s3://lake/a//b", "s3://lake/a/b/c", True),
        ("s3://lake/a/./b", "s3://lake/a/b/c", True),
        ("s3://lake/a/x/../b", "s3://lake/a/b/c", True),
        ("file:///data/buffer", "file:///data/wh/../buffer/x", True),
        ("s3://lake/b#1", "s3://lake/b", False),
    ],
)
def test_one_place_lies_in_another_whatever_the_spelling(outer: str, inner: str, wanted: bool) -> None:
    """A buffer that holds the table, or the other way round: clean-up of the one would delete the other."""
    assert wanted is contains(outer, inner)
    assert overlap(outer, inner) is overlap(inner, outer)
    assert overlap(outer, inner) or not wanted


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/data/x", "/data/x"),
        ("file:/data/x", "/data/x"),
        ("file:///data/x", "/data/x"),
        ("file:///data/id=a%20b/p#1?.parquet", "/data/id=a%20b/p#1?.parquet"),
    ],
)
def test_a_local_uri_is_its_path_to_the_letter(uri: str, path: str) -> None:
    """Cut at `#`, a deletion would hit another file."""
    assert path == local_path(uri)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("s3://lake/t/data/r/name=Ada/day=1/f=1.parquet", "s3://lake/t/data/r/name=*/day=*/f=1.parquet"),
        ("/t/data/f", "/t/data/f"),
        ("f", "f"),
        ("file:/t/name=a%2Fb/f", "file:/t/name=*/f"),
    ],
)
def test_a_path_without_the_values_of_partitions_keeps_everything_else(path: str, told: str) -> None:
    assert without_values(path) == told
