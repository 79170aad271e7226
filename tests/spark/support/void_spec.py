"""Tables that were of format version 1 and dropped a partition field, which they keep in their specs as `void`."""

from collections import Counter

from tests.spark.support.story import Row, Story, some_rows
from tests.support.lake import SCHEMA


def give_void_spec(story: Story) -> None:
    """Create the table: of format version 1, with a partition field that is dropped, and another one; then it is raised to the
    version of the story. A is in files of the first spec, B and C together in those of the void one.
    """
    spark, name = story.spark, story.full_name
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {story.catalog}.air")
    properties = "'format-version' = '1', 'write.metadata.metrics.column.batch_id' = 'full'"
    spark.sql(f"CREATE TABLE {name} ({SCHEMA}) USING iceberg PARTITIONED BY (day) TBLPROPERTIES ({properties})")
    spark.sql(f"ALTER TABLE {name} WRITE ORDERED BY batch_id")
    insert(story, "A")
    spark.sql(f"ALTER TABLE {name} DROP PARTITION FIELD day")
    insert(story, "B", "C")
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD truncate(100000, v)")
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '{story.format_version}')")


def insert(story: Story, *batches: str) -> None:
    """Another engine adds the rows that batches of these ids would have."""
    rows = ", ".join(f"({r['v']}, {r['day']}, '{batch}')" for batch in batches for r in some_rows(batch, 4))
    story.spark.sql(f"INSERT INTO {story.full_name} (v, day, batch_id) VALUES {rows}")


def void_spec(story: Story) -> int:
    (found,) = (i for i, s in story.table().specs().items() if [str(f.transform) for f in s.fields] == ["void"])
    return found


def on_day_1(rows: Counter[Row]) -> Counter[Row]:
    return Counter({row: n for row, n in rows.items() if row[2] == 1})
