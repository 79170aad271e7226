"""The metadata file that the JVM holds of a table, as PyIceberg reads it. I/O: reads.

A metadata file never changes, so the newest one is read once per handle, however many steps of a run look at it.
`lethe.iceberg.metadata_file` parses only the snapshots that are new in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from lethe.iceberg import metadata_file
from lethe.iceberg.facts import TableFacts, observe
from lethe.uri import as_file_uri
from pyiceberg.table import StaticTable

from lethe_spark.jvm.table import IcebergTable


@dataclass(frozen=True)
class ParsedMetadata:
    """One version of a table's metadata, and what was found in it."""

    static: StaticTable
    version: metadata_file.Version
    # When this version was written, in milliseconds since 1970. A catalog on folders counts the names of its files, so a table
    # that was dropped and created again has the same names.
    updated_ms: int
    # By the name of the batch column, and the name of the table in messages.
    facts: dict[tuple[str, str], TableFacts] = field(default_factory=dict)


_newest: Final[WeakKeyDictionary[IcebergTable, ParsedMetadata]] = WeakKeyDictionary()


def static_table(table: IcebergTable, properties: Mapping[str, str]) -> StaticTable:
    """PyIceberg's view of the metadata that the JVM holds.

    Args:
        properties: PyIceberg's properties of the catalog, with the credentials for this table.
    """
    return _parsed(table, properties).static


def facts_of(table: IcebergTable, properties: Mapping[str, str], batch_column: str, name: str) -> TableFacts:
    """What `lethe.iceberg.facts.observe` finds in that metadata. Raises: InputError, as `observe` does."""
    parsed = _parsed(table, properties)
    key = (batch_column, name)
    if key not in parsed.facts:
        parsed.facts[key] = observe(parsed.static, batch_column, name, parsed.version.snapshot_of)
    return parsed.facts[key]


def _parsed(table: IcebergTable, properties: Mapping[str, str]) -> ParsedMetadata:
    current = table.java.operations().current()
    updated_ms, location = int(current.lastUpdatedMillis()), str(current.metadataFileLocation())
    location = as_file_uri(location)  # Java writes local paths as `file:/x`, which PyIceberg would not open
    known = _newest.get(table)
    if known is None or (known.static.metadata_location, known.updated_ms) != (location, updated_ms):
        known = ParsedMetadata(*metadata_file.read(location, properties), updated_ms)
        _newest[table] = known
    return known
