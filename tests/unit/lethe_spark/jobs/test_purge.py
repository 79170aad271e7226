"""What a vacuum says, and what it leaves behind if it cannot write."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from lethe.base.errors import LetheError, TransientError
from lethe.vacuum.plan import VacuumPlan
from lethe_spark.jobs.rewriting import FilteredFiles
from lethe_spark.jobs.vacuum import purge
from lethe_spark.jobs.vacuum.purge import PurgeProgress, Purging
from lethe_spark.jvm.data_files import DataFile

from tests.support.builders import a_file


def test_the_message_about_missing_files_names_no_value_of_a_partition() -> None:
    path = "s3://t/data/email=a%40b/f.parquet"
    purging: Any = SimpleNamespace(
        searched=SimpleNamespace(missing={path}),
        live=SimpleNamespace(found={path: None}),
        table=SimpleNamespace(full_name="main.air.flights"),
    )

    message = Purging._message_of_missing(purging)

    assert "the first is s3://t/data/email=*/f.parquet. " in message


@pytest.mark.parametrize("error", [TransientError("CatalogOrStorageAway", "away."), RuntimeError("Spark")])
def test_files_that_were_filtered_are_deleted_if_spark_cannot_rewrite_the_others(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    plan = VacuumPlan(1, (), (a_file("A", path="/a"), a_file("B", path="/b")), (), ())
    new, deleted = DataFile("/new", 1, 1, None), list[str]()

    def fail(*_: object) -> Any:
        raise error

    monkeypatch.setattr(purge, "tasks_by_path", lambda *_: {"/a": MagicMock(), "/b": MagicMock()})
    monkeypatch.setattr(purge, "filter_files", lambda *_: FilteredFiles((new,), frozenset({"/a"})))
    monkeypatch.setattr(purge, "_remaining", fail)
    monkeypatch.setattr(purge, "discard", lambda _, files, __: deleted.extend(f.path for f in files))

    with pytest.raises((LetheError, RuntimeError)):
        purge.write(MagicMock(), MagicMock(), MagicMock(), PurgeProgress(plan), 1)

    assert deleted == ["/new"]
