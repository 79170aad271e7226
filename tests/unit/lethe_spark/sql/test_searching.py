"""Which searches of a Job use Spark."""

from types import SimpleNamespace

import pytest
from lethe.contract.run import SearchLimits
from lethe.search.batches import BatchSearch, Searched
from lethe.search.candidates import CandidateFile
from lethe_spark.sql import searching


@pytest.mark.parametrize(
    ("files", "cores", "limits", "uses_spark"),
    [
        pytest.param(100, 40, {}, False, id="few"),
        pytest.param(101, 40, {}, True, id="executors are faster"),
        pytest.param(2000, 4, {}, False, id="a driver alone is not"),
        pytest.param(2001, 4, {}, True, id="too many files"),
        pytest.param(10, 4, {"max_bytes_per_commit": 99}, True, id="too many bytes"),
    ],
)
def test_few_files_are_searched_here_and_many_with_spark(
    monkeypatch: pytest.MonkeyPatch, files: int, cores: int, limits: dict[str, int], uses_spark: bool
) -> None:
    used: list[str] = []
    nothing = Searched({}, {})
    monkeypatch.setattr(searching, "search_here", lambda *_: used.append("here") or nothing)
    monkeypatch.setattr(searching, "search_batches", lambda *_: used.append("spark") or nothing)
    empty = frozenset[str]()
    candidates = [CandidateFile(f"/{n}", 1, "PARQUET", None, empty, empty, empty, 10) for n in range(files)]
    context = SimpleNamespace(defaultParallelism=cores)

    searching.search_few_here(context, SearchLimits(**limits), BatchSearch(1, empty, {}), candidates)  # type: ignore[arg-type]

    assert used == ["spark" if uses_spark else "here"]
