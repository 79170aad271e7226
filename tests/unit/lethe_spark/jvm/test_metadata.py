"""Which files may be deleted as files of a table."""

from unittest.mock import MagicMock

import pytest
from lethe.base.errors import InputError
from lethe_spark.jvm.metadata import remove_files


def a_table(**properties: str) -> MagicMock:
    found = {name.replace("_", "."): value for name, value in properties.items()}
    return MagicMock(full_name="main.air.flights", location="s3://lake/air/flights", properties=found)


@pytest.mark.parametrize("name", ["write_data_path", "write_metadata_path"])
def test_a_table_may_have_files_in_the_folders_that_its_properties_name(name: str) -> None:
    table = a_table(**{name: "s3://elsewhere/flights/"})

    assert remove_files(table, ["s3://lake/air/flights/data/f.parquet", "s3://elsewhere/flights/m0.avro"]) == 2
    table.jvm.org.apache.iceberg.CatalogUtil.deleteFiles.assert_called_once()


@pytest.mark.parametrize(
    ("properties", "path"),
    [
        ({}, "s3://lake/air/trips/email=a%40b/f.parquet"),
        ({}, "s3://lake/air/flights/../trips/email=a%40b/f.parquet"),
        ({"write_metadata_path": "s3://elsewhere/flights"}, "s3://elsewhere/flights-old/email=a%40b/f.parquet"),
        ({"write_data_path": ""}, "/elsewhere/email=a%40b/f.parquet"),
    ],
)
def test_no_other_file_is_deleted_and_the_message_has_no_value_of_a_partition(
    properties: dict[str, str], path: str
) -> None:
    table = a_table(**properties)

    with pytest.raises(
        InputError, match=r"OutsideTable: main\.air\.flights: did not delete .*/email=\*/f\.parquet"
    ) as e:
        remove_files(table, [path])

    assert "a%40b" not in e.value.message
    table.jvm.org.apache.iceberg.CatalogUtil.deleteFiles.assert_not_called()
