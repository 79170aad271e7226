"""Another engine changes the columns of a table on SQLite and local files, also to types that no library here knows."""

import json
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

Field = dict[str, Any]


def add_column(database: Path, table: str, name: str, kind: Any, required: bool = False, **more: Any) -> None:
    """Add a column in a new schema.

    Args:
        database: Of the SQL catalog.
        table: "namespace.name".
        kind: A type as Iceberg's JSON.
        more: What else the JSON of the column has.
    """

    def added(fields: list[Field], new_id: int) -> list[Field]:
        return [*fields, {"id": new_id, "name": name, "required": required, "type": kind, **more}]

    _change(database, table, added)


def drop_column(database: Path, table: str, name: str) -> None:
    """Drop a column. The schemas before stay in the metadata."""
    _change(database, table, lambda fields, _: [f for f in fields if f["name"] != name])


def _change(database: Path, table: str, changed: Callable[[list[Field], int], list[Field]]) -> None:
    namespace, _, name = table.rpartition(".")
    with sqlite3.connect(database) as connection:
        where = "WHERE table_namespace = ? AND table_name = ?"
        (location,) = connection.execute(
            f"SELECT metadata_location FROM iceberg_tables {where}", (namespace, name)
        ).fetchone()
        file = Path("/" + location.removeprefix("file:").lstrip("/"))
        metadata = json.loads(file.read_text())
        current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
        new_id = metadata["last-column-id"] + 100  # below, nested types may have ids of their own
        schema_id = max(s["schema-id"] for s in metadata["schemas"]) + 1
        metadata["schemas"].append({**current, "schema-id": schema_id, "fields": changed(current["fields"], new_id)})
        metadata |= {"current-schema-id": schema_id, "last-column-id": new_id}
        metadata["metadata-log"] = [
            *metadata.get("metadata-log", []),
            {"metadata-file": location, "timestamp-ms": metadata["last-updated-ms"]},
        ]
        made = file.with_name(f"{int(file.name.partition('-')[0]) + 1:05d}-{uuid.uuid4()}.metadata.json")
        made.write_text(json.dumps(metadata))
        connection.execute(
            f"UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? {where}",
            (f"{location.rpartition('/')[0]}/{made.name}", location, namespace, name),
        )
