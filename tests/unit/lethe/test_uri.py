"""Places are compared as places, whatever their spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.uri import (
    contains,
    index_keys,
    is_local,
    local_path,
    overlap,
    overlap_keys,
    parents,
    scheme_of,
    surely_contains,
    without_values,
)


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
        ("s3://lake/b#1", "s3://other/b", False),
        ("s3://lake/b", "s3://lake/b#1", True),  # Iceberg's S3FileIO cuts it at the fragment
        ("s3://lake/b", "s3://lake/b?x=1", True),
        ("S3://Lake/buffer", "s3a://lake/buffer/x", True),
        ("s3://lake/Buffer", "s3://lake/buffer", False),
        ("s3://lake/a b", "s3://lake/a%20b/x", True),
        ("s3://lake/wh/t", "s3://lake/buffer/%2e%2e/wh/t", True),
        ("s3://lake/wh/t", "s3://lake/buffer/%252e%252E/wh/t", True),
        ("s3://lake/wh/t", "s3://lake/wh%2Ft/data", True),
        ("s3://lake/wh/t", "s3://lake//wh///t/", True),
        ("s3://lake/wh/t", "s3://lake/wh/t2/../t/./data", True),
        ("file:///etc", "FILE:/etc/passwd", True),
        ("file:///etc", "file://localhost/etc/passwd", True),
        ("/etc", "/var/../etc", True),
    ],
)
def test_one_place_is_in_another_whatever_the_spelling(outer: str, inner: str, wanted: bool) -> None:
    """A buffer that holds the table, or the other way round: clean-up of the one would delete the other."""
    assert wanted is contains(outer, inner)
    assert overlap(outer, inner) is overlap(inner, outer)
    assert overlap(outer, inner) or not wanted


_ROOTS = st.sampled_from(["s3://lake", "S3A://Lake", "s3://sea", "file:", "", "abfs://c@a.blob.x", "gs://lake"])
_SEGMENTS = st.sampled_from(["a", "b", "A", "..", ".", "", "%2e%2e", "a%2Fb", "b?c", "b#c", "localhost"])
_URIS = st.builds(lambda root, names: "/".join([root, *names]), _ROOTS, st.lists(_SEGMENTS, max_size=5))


@given(_URIS, _URIS)
def test_an_index_finds_exactly_the_uris_that_overlap(one: str, other: str) -> None:
    assert overlap(one, other) is not index_keys(one).isdisjoint(overlap_keys(other))


@pytest.mark.parametrize(
    ("allowed", "uri", "wanted"),
    [
        ("s3://lake/team-a", "s3://lake/team-a/buffer", True),
        ("s3://lake/team-a/", "s3a://LAKE/team-a", True),
        ("s3://lake/team-a", "s3://lake/team-ab", False),
        ("s3://lake/team-a", "s3://lake/team-a/../team-b", False),
        ("s3://lake/team-a", "s3://lake/team-a/%2e%2e/team-b", False),
        ("s3://lake/team-b", "s3://lake/team-a/../team-b", False),  # literal in the store
        ("s3://lake/team-a", "s3://lake/team-a%2Fx", False),
        ("s3://lake/team-a", "s3://lake/team-a?/x", False),
        ("s3://lake/team a", "s3://lake/team%20a/x", False),
    ],
)
def test_what_is_allowed_below_a_prefix_is_below_it_in_every_reading(allowed: str, uri: str, wanted: bool) -> None:
    """Where one reading leads out of the prefix, somebody may take the URI for that."""
    assert wanted is surely_contains(allowed, uri)


@pytest.mark.parametrize(
    ("uri", "wanted"),
    [
        ("s3a://lake/a/b/c/", ("s3://lake/a/b", "s3://lake/a", "s3://lake")),
        ("s3://lake", ()),
        ("file:/a/b", ("file:///a", "file:///")),
        ("/a//b", ("file:///a", "file:///")),
        ("s3://lake/a/../b", ("s3://lake/a/..", "s3://lake/a", "s3://lake")),
    ],
)
def test_the_parents_of_a_uri_are_those_of_every_reading(uri: str, wanted: tuple[str, ...]) -> None:
    assert wanted == parents(uri)


@pytest.mark.parametrize(
    ("uri", "scheme"),
    [
        ("s3n://b/x", "s3"),
        ("S3A://b/x", "s3"),
        ("/x", "file"),
        ("x/y", "file"),
        ("FILE:/x", "file"),
        ("gs://b", "gs"),
        ("/a:b/c", "file"),
    ],
)
def test_a_scheme_is_known_whatever_its_spelling(uri: str, scheme: str) -> None:
    assert (scheme, scheme == "file") == (scheme_of(uri), is_local(uri))


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/data/x", "/data/x"),
        ("file:/data/x", "/data/x"),
        ("FILE:///data/x", "/data/x"),
        ("file:///data/x", "/data/x"),
        ("file:///data/id=a%20b/p#1?.parquet", "/data/id=a%20b/p#1?.parquet"),
    ],
)
def test_a_local_uri_is_its_path_to_the_letter(uri: str, path: str) -> None:
    """Cut at `#`, a deletion would hit another file."""
    assert path == local_path(uri)


@pytest.mark.parametrize(
    ("path", "reported"),
    [
        ("s3://lake/t/data/r/name=Ada/day=1/f=1.parquet", "s3://lake/t/data/r/name=*/day=*/f=1.parquet"),
        ("/t/data/f", "/t/data/f"),
        ("f", "f"),
        ("file:/t/name=a%2Fb/f", "file:/t/name=*/f"),
    ],
)
def test_a_path_without_the_values_of_partitions_keeps_everything_else(path: str, reported: str) -> None:
    assert without_values(path) == reported
