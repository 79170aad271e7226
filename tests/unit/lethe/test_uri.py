"""Places and identities: one place in every spelling, and identities that never change and that no two things share."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import InputError
from lethe.base.names import (
    FORMAT_EXTENSIONS,
    batch_file,
    batch_folder,
    batch_id_of_file,
    batch_id_of_folder,
    kube_name,
    request_key,
    run_id,
)
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


any_id = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256)


@given(any_id)
def test_any_unicode_id_survives_being_a_folder_name(batch_id: str) -> None:
    """The folder's value after `=` is the id, whatever the id is; and a folder is one folder."""
    folder = batch_folder("batch_id", batch_id)

    assert batch_id == batch_id_of_folder("batch_id", folder)
    assert "/" not in folder
    assert set(folder) <= set(string.ascii_letters + string.digits + "_.-~%=")


@pytest.mark.parametrize(
    ("folder", "batch_id"),
    [
        ("batch_id=2013-01-01.UA", "2013-01-01.UA"),
        ("batch_id=a%20b%2Fc", "a b/c"),
        ("batch_id=a=b", "a=b"),
        ("batch_id=%C3%A9", "é"),
        ("batch_id=é", "é"),
        ("batch_id=50%", "50%"),
        ("batch_id=a+b", "a+b"),
        ("batch_id=" + "x" * 256, "x" * 256),
        ("other=1", None),
        ("batch_id", None),
        ("Batch_id=1", None),
    ],
)
def test_a_folder_name_means_one_id_or_none(folder: str, batch_id: str | None) -> None:
    assert batch_id == batch_id_of_folder("batch_id", folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("batch_id=", "0 characters, expected 1 to 256"),
        ("batch_id=" + "x" * 257, "257 characters, expected 1 to 256"),
        ("batch_id=%FF", "not percent-encoded UTF-8"),
        (".csv", "the file '.csv' names a batch id of 0 characters, expected 1 to 256"),
        ("x" * 257 + ".csv", "257 characters, expected 1 to 256"),
        ("%FF.csv.gz", "the file '%FF.csv.gz' is not percent-encoded UTF-8"),
    ],
)
def test_a_folder_or_file_without_a_usable_id_is_refused_with_the_reason(name: str, said: str) -> None:
    is_folder = name.startswith("batch_id")

    with pytest.raises(InputError, match=f"InvalidBatchId: .*{said}") as refused:
        batch_id_of_folder("batch_id", name) if is_folder else batch_id_of_file(name)

    assert len(refused.value.message) < 250  # a name of any length does not flood an event


@given(any_id, st.sampled_from([e + gz for e in FORMAT_EXTENSIONS for gz in ("", ".gz")]))
def test_any_unicode_id_survives_being_a_file_name(batch_id: str, extension: str) -> None:
    """Also one that ends like an extension, or begins like a hidden file."""
    name = batch_file(batch_id, extension)

    assert batch_id == batch_id_of_file(name)
    assert "/" not in name
    assert not name.startswith(("_", "."))


@pytest.mark.parametrize(
    ("name", "batch_id"),
    [
        ("A.parquet", "A"),
        ("2013-01-01.UA.csv", "2013-01-01.UA"),
        ("2013-01-01.UA", "2013-01-01.UA"),  # an id may hold dots: only what a file can be is an extension
        ("A.csv.gz", "A"),
        ("A.json.gz", "A"),
        ("A.gz", "A"),
        ("A.JSONL.GZ", "A"),
        ("A.csv.csv", "A.csv"),
        ("A.gz.csv", "A.gz"),
        ("part-0.snappy.parquet", "part-0.snappy"),
        ("a%20b%2Fc.orc", "a b/c"),
        ("A%2Ecsv", "A.csv"),
        ("é.avro", "é"),
        ("x" * 256 + ".ndjson", "x" * 256),
    ],
)
def test_a_file_name_means_one_id(name: str, batch_id: str) -> None:
    assert batch_id == batch_id_of_file(name)


def test_a_run_id_is_the_same_for_ever_and_for_any_order_of_keys() -> None:
    """Tables remember it: another value would let a crashed run's work be done twice."""
    assert run_id("uid-1", "Consolidation", ["b", "a"]) == "3131c2554ec3bf13d8964a3e2d79a571"
    assert run_id("uid-1", "Consolidation", ["a", "b"]) == "3131c2554ec3bf13d8964a3e2d79a571"
    others = [
        ("uid-2", "Consolidation", ["a", "b"]),
        ("uid-1", "Vacuum", ["a", "b"]),
        ("uid-1", "Consolidation", ["a,b"]),
    ]
    assert len({run_id(*other) for other in others} - {"3131c2554ec3bf13d8964a3e2d79a571"}) == 3


SPEC = {"operation": "Revert", "batchIds": ["é", "a"], "datasetRef": {"name": "flights"}, "evictBySeconds": 5}


def test_a_request_key_is_the_same_for_ever() -> None:
    """The ledger remembers it: another value would carry a re-applied restatement out a second time."""
    wanted = "ns/revert/e0ac098e312329a765d7a77777bd9e7640b10071a84eb492f48875d7600d25bb"

    assert wanted == request_key("ns", "revert", SPEC)


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        # Restatements re-created by GitOps, paused on the way or given more time, are the same requests.
        *(({f: 1}, True) for f in ("suspend", "cancel", "deadlineSeconds", "ttlSecondsAfterFinished")),
        ({"reason": None}, True),
        *((c, False) for c in ({"batchIds": ["a", "é"]}, {"reason": "x"}, {"operation": "Replay"})),
    ],
)
def test_a_request_key_depends_on_what_is_asked_for_alone(change: dict[str, object], is_same: bool) -> None:
    changed = dict(reversed({**SPEC, **change}.items()))

    assert (request_key("ns", "r", changed) == request_key("ns", "r", SPEC)) is is_same


LETTERS = string.ascii_lowercase + string.digits
label = st.text(LETTERS + ".-", min_size=1, max_size=82).filter(lambda t: t[0] in LETTERS and t[-1] in LETTERS)


@given(label, st.sampled_from(["", "runs", "driver-0123456789ab-1"]))
def test_a_derived_name_is_a_dns_label(name: str, suffix: str) -> None:
    derived = kube_name(*filter(None, [name, suffix]))

    assert 1 <= len(derived) <= 63
    assert set(derived) <= set(string.ascii_lowercase + string.digits + "-")
    assert not derived.startswith("-")
    assert not derived.endswith("-")


def test_a_short_name_is_kept_readable() -> None:
    assert kube_name("flights", "runs") == "flights-runs"
    assert kube_name("flights", "Vacuum", "0123abcd", "1") == "flights-vacuum-0123abcd-1"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("x" * 60 + "a", "runs"), ("x" * 60 + "b", "runs")),
        (("air.flights", "runs"), ("air-flights", "runs")),  # both are valid names of Datasets
    ],
)
def test_two_different_names_in_kubernetes_stay_different(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Else two Datasets would share one ConfigMap and read each other's results."""
    assert kube_name(*one) != kube_name(*other)
