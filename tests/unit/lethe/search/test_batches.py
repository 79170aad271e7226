"""Searches of many files for the rows of batches: what is too much, and what is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from lethe.contract.run import SearchLimits
from lethe.files.bounds import FileBounds, outdated
from lethe.search import ages
from lethe.search.batches import BatchSearch, Searched, SearchError, TooMuchToSearch, result_of, search_within
from lethe.search.candidates import CandidateFile
from lethe.search.positions import unsure_at


def a_candidate(path: str, bytes_to_search: int = 10) -> CandidateFile:
    return CandidateFile(path, 1000, "PARQUET", None, frozenset(), frozenset(), frozenset(), bytes_to_search)


SEARCH = BatchSearch(1, frozenset(), {})
TWO = [a_candidate("/a"), a_candidate("/b")]


@pytest.mark.parametrize("limits", [{"max_files_per_commit": 1}, {"max_bytes_per_commit": 19}])
def test_more_files_or_bytes_than_the_limit_are_not_opened(limits: dict[str, int]) -> None:
    with pytest.raises(TooMuchToSearch, match="in 2 files with 20 bytes") as refused:
        search_within(SearchLimits(**limits), SEARCH, TWO)

    assert (refused.value.files, refused.value.reason) == (2, "NeedsSpark")


def test_as_much_as_the_limit_is_searched() -> None:
    limits = SearchLimits(max_files_per_commit=2, max_bytes_per_commit=20)

    assert search_within(limits, replace(SEARCH, strict=True), TWO) == Searched({}, {}, frozenset({"/a", "/b"}))


PATH = "s3://lake/t/data/email=ana%40example.org/00000-5b.parquet"
NAMED = "s3://lake/t/data/email=*/00000-5b.parquet"


def test_no_message_about_a_file_has_the_values_of_its_partition() -> None:
    """They are in its path, and messages are in statuses and logs, also after an Erase."""

    def missing(_: CandidateFile) -> Any:
        raise FileNotFoundError(PATH)

    def damaged(_: CandidateFile) -> Any:
        raise OSError(PATH)

    def uncertain(file: CandidateFile) -> Any:
        with unsure_at(file.path):
            pa.array([PATH]).cast(pa.int64())

    def said(of: Callable[..., Any], search: Callable[[CandidateFile], Any]) -> str:
        try:
            return str(of(a_candidate(PATH), search)[1])
        except SearchError as e:
            return str(e)

    texts = [
        said(result_of, missing),
        said(result_of, damaged),
        said(result_of, uncertain),
        said(ages.result_of, damaged),
    ]
    planned = FileBounds(PATH, 10, 1000, "A", "B", 0)
    texts += [outdated([planned], []), outdated([planned], [replace(planned, deletes=frozenset({"dv"}))])]

    assert [text for text in texts if NAMED not in text or "ana" in text] == []
