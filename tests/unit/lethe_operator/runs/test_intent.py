"""Where a large run.json lies."""

import pytest
from lethe_operator.resources.observed import NoTable, Unavailable
from lethe_operator.runs.launch import NoPlaceForRun, intent_document, place

from tests.support.resources import a_buffered, a_consolidation, a_table

RUN = a_consolidation(a_buffered("A"))


def test_a_small_document_is_in_the_config_map() -> None:
    assert RUN.to_json() == intent_document(RUN, Unavailable("StorageUnavailable", "not asked"))


def test_a_large_document_is_beside_the_table_or_in_the_warehouse_before_the_table_exists() -> None:
    assert f"s3://lake/t/_runs/{RUN.run_id}.json" == place(RUN, a_table(location="s3://lake/t/"))
    assert f"s3://lake/w/_runs/uid-flights/{RUN.run_id}.json" == place(RUN, NoTable("s3://lake/w"))


def test_without_a_warehouse_the_field_that_helps_is_named() -> None:
    with pytest.raises(NoPlaceForRun, match="maxBatchesPerRun"):
        place(RUN, NoTable())
