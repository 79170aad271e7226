"""Which file of a metadata folder counts, and which may go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import TableError
from lethe.files.hadoop_version import file_of, kept_versions, newest, outdated, version_of

FOLDER = "file:///lake/air/flights/metadata"


def test_the_highest_number_is_the_newest_whatever_the_listings_order() -> None:
    """Object stores list v10 before v9."""
    names = ["v1.metadata.json", "v10.metadata.json", "v9.metadata.json", "version-hint.text"]

    assert newest(names, FOLDER) == newest(reversed(names), FOLDER) == "v10.metadata.json"


def test_other_files_of_the_folder_are_no_versions() -> None:
    others = [
        "version-hint.text",
        "snap-1-2.avro",
        ".v3.metadata.json.8a1f",
        ".v3.metadata.json.crc",
        "v.json",
        "00003-x.metadata.json",
    ]

    assert [version_of(n) for n in others] == [None] * len(others)
    assert newest(others, FOLDER) is None


def test_an_unknown_spelling_counts_too() -> None:
    """Passing it over would mean to commit beside it."""
    assert newest(["v3.metadata.json", "v4.zst.metadata.json"], FOLDER) == "v4.zst.metadata.json"
    assert newest(["v3.metadata.json", "v4.gz.metadata.json"], FOLDER) == "v4.gz.metadata.json"


def test_two_files_that_claim_one_number_are_refused_by_name() -> None:
    names = ["v4.metadata.json", "v3.metadata.json", "v4.gz.metadata.json"]

    with pytest.raises(
        TableError, match=rf"{FOLDER}: v4.gz.metadata.json and v4.metadata.json have the same"
    ) as refused:
        newest(names, FOLDER)

    assert refused.value.reason == "MetadataAmbiguous"
    assert newest([*names, "v5.metadata.json"], FOLDER) == "v5.metadata.json"


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        ({}, None),
        ({"write.metadata.delete-after-commit.enabled": "false"}, None),
        ({"write.metadata.delete-after-commit.enabled": "TRUE"}, 100),
        ({"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "7"}, 7),
        ({"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "0"}, 1),
        ({"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "x"}, 100),
    ],
)
def test_how_many_versions_are_kept_is_icebergs_own_setting(properties: dict[str, str], kept: int | None) -> None:
    assert kept_versions(properties) == kept


@given(st.sets(st.integers(1, 60)), st.integers(1, 60), st.integers(1, 60))
def test_the_oldest_go_first_and_the_newest_and_those_to_keep_stay(
    versions: set[int], committed: int, keep: int
) -> None:
    gone = [version_of(n) for n in outdated([file_of(v) for v in versions], committed, keep)]

    assert gone == sorted(v for v in versions if v < committed - keep)
