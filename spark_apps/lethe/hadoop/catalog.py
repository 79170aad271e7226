"""A read-only catalog for Hadoop tables: `<warehouse>/<namespace>/<table>/metadata/v<N>.metadata.json`. I/O.

PyIceberg has no such catalog. Changes to tables are made with Iceberg's Java library, which uses `MetadataFolder` through
`lethe_spark.sql.folder_server`.
"""

from typing import Final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.typedef import Identifier

from lethe.base.errors import InputError
from lethe.files.unknown_types import known_types_only
from lethe.hadoop.metadata_folder import MetadataFolder
from lethe.storage.object_store import open_folder

TYPE: Final = "hadoop"
WAREHOUSE: Final = "warehouse"


class FolderCatalog(NoopCatalog):
    """A folder as a catalog.

    Raises: InputError (UnsupportedCatalog), if the properties have no warehouse.
    """

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        if not properties.get(WAREHOUSE):
            raise InputError(
                "UnsupportedCatalog",
                f"catalog {name!r} is of type {TYPE} and has no property warehouse. Set it to the folder that "
                "contains the tables.",
            )

    def load_table(self, identifier: str | Identifier) -> Table:
        """Raises: NoSuchTableError, InputError (InvalidName, UnsupportedStorage), TableError, TransientError."""
        parts = self.identifier_to_tuple(identifier)
        found = self.metadata_folder(parts).current()
        if found is None:
            raise NoSuchTableError(f"there is no table in {self.location(parts)}")
        metadata = TableMetadataUtil.parse_raw(known_types_only(found.text))
        return Table(
            identifier=parts,
            metadata=metadata,
            metadata_location=found.location,
            io=self._load_file_io(location=found.location),
            catalog=self,
        )

    def table_exists(self, identifier: str | Identifier) -> bool:
        return self.metadata_folder(self.identifier_to_tuple(identifier)).current() is not None

    def metadata_folder(self, parts: Identifier) -> MetadataFolder:
        return MetadataFolder(open_folder(f"{self.location(parts)}/metadata", self.properties))

    def location(self, parts: Identifier) -> str:
        """The folder of a table. Raises: InputError (InvalidName), if a part of the name cannot be the name of a folder."""
        for part in parts:
            if not part or part in (".", "..") or "/" in part:
                raise InputError(
                    "InvalidName",
                    f"{'.'.join(parts)!r}: in the catalog {self.name} each part of a table's name must be the "
                    "name of a folder.",
                )
        return "/".join([self.properties[WAREHOUSE].rstrip("/"), *parts])
