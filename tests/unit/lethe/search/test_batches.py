"""Searches of many files for the rows of batches: what is too much, and what is found."""

from dataclasses import replace

import pytest
from lethe.contract.run import SearchLimits
from lethe.search.batches import BatchSearch, Searched, TooMuchToSearch, search_within
from lethe.search.candidates import CandidateFile


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
