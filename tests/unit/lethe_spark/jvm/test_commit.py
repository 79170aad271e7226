"""How many files a change has to find in manifests."""

from unittest.mock import sentinel

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
    files_to_find,
)
from lethe_spark.jvm.data_files import DataFile, DeleteChanges

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
