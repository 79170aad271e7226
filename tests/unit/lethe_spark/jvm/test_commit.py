"""How many files a change has to find in manifests, and what the message about a conflict says."""

from types import SimpleNamespace
from unittest.mock import MagicMock, sentinel

import pytest
from lethe_spark.jvm.commit import (
    Append,
    Change,
    DeleteFiles,
    LedgerOnly,
    Overwrite,
    RewriteFiles,
    RewriteManifests,
    RowDelta,
    _refusal,
    files_to_find,
)
from lethe_spark.jvm.data_files import DataFile, DeleteChanges
from py4j.protocol import Py4JError

FILES = tuple(DataFile(f"/{n}", 1, 1, java=None) for n in range(3))
ONE = FILES[:1]


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (LedgerOnly(), 0),
        (Append(FILES), 0),
        (DeleteFiles(FILES), 3),
        (RewriteFiles(FILES, ONE, 1, dangling=(sentinel.deletes,)), 4),
        (Overwrite(FILES, ONE, 1, dangling=(sentinel.deletes,)), 4),
        (RowDelta(DeleteChanges(added=(sentinel.new,) * 9, replaced=(sentinel.old,) * 2), FILES, 1, remove=ONE), 3),
        (RewriteManifests(frozenset({"/m1", "/m2"}), {"/0": 0}), 2),
    ],
)
def test_files_that_are_added_need_not_be_found(change: Change, count: int) -> None:
    assert files_to_find(change) == count


def test_a_conflict_about_files_names_no_value_of_a_partition() -> None:
    """Rows may be erased whose values are in the paths of their files."""
    error, table = Py4JError("a%40b"), MagicMock(full_name="main.air.flights")
    text = "Cannot commit, missing data files: [s3://t/data/email=a%40b/day=1/f.parquet, s3://t/email=a b/g.parquet]"
    error._origin = SimpleNamespace(getMessage=lambda: text)  # type: ignore[attr-defined]

    refused = _refusal(table, error)

    assert refused is not None
    assert refused.message == (
        "main.air.flights: a concurrent commit changed the data files of this commit (Cannot commit, missing data files: "
        "[s3://t/data/email=*/day=*/f.parquet, s3://t/email=*/g.parquet]). Nothing was committed. The run plans again."
    )
