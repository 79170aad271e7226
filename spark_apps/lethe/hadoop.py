"""Tables in folders: reads and commits versions of a table's metadata, and lists such tables as a catalog. I/O.

A commit creates the file of the next version, and only one writer can create it. Changes to tables are made with Iceberg's Java
library, which uses `MetadataFolder` through `lethe_spark.sql.rest_servers`.
"""

import gzip
import json
import logging
import zlib
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.typedef import Identifier

from lethe.base.errors import ConflictError, InputError, LetheError, TableError, TransientError, UnknownCommitState
from lethe.base.unknown_types import known_types_only
from lethe.files import hadoop_version
from lethe.storage.file_io import file_io
from lethe.storage.object_store import FolderListing, WriteUnknown, open_folder

log = logging.getLogger(__name__)

READ_ATTEMPTS: Final = 10
"""How many times the newest version is read."""

TYPE: Final = "hadoop"
WAREHOUSE: Final = "warehouse"


@dataclass(frozen=True)
class MetadataVersion:
    """A version of a table's metadata."""

    number: int
    location: str
    """The URI of the file."""
    content: bytes
    """The content of the file, possibly gzip."""
    text: str
    """The content, decompressed."""
    document: dict[str, Any]
    """The text, parsed as JSON."""

    @property
    def uuid(self) -> str:
        """The table's UUID, which stays until the table is dropped and created again."""
        return str(self.document["table-uuid"])

    @property
    def name(self) -> str:
        """The name of the file without its folder, such as `v3.metadata.json`."""
        return self.location.rpartition("/")[2]


class MetadataFolder:
    """The folder `<table location>/metadata`.

    Invariants:

    - The listing decides which version is the newest. `version-hint.text` is written after a commit, for other engines; Lethe
      never reads it.
    - An unreadable version is an error. Falling back to the previous version would hide a commit, or overwrite it.
    - A version is created atomically. A writer that crashes before that has changed nothing; after that it has committed.
    - Old versions are deleted oldest first. If so many commits were made meanwhile that the version number of this writer was
      used and deleted again, then the version before it was deleted as well. So a commit checks afterwards that its base
      still exists.
    """

    def __init__(self, folder: FolderListing) -> None:
        self._folder = folder

    @property
    def location(self) -> str:
        """The URI of the table's folder."""
        return self._folder.uri.rpartition("/")[0]

    def current(self) -> MetadataVersion | None:
        """The newest version; None: there is no table.

        Raises:
            TableError: MetadataUnreadable, MetadataAmbiguous.
            TransientError: A dependency is temporarily unavailable.
            Exception: Errors of the storage.
        """
        for _ in range(READ_ATTEMPTS):
            name = self._newest()
            if name is None:
                return None
            content = self._folder.read(name)
            if content is not None:
                return self._version(name, content)
            # Deleted since it was listed, because newer versions were committed.
        raise TransientError(
            "MetadataMoving",
            f"{self._folder.uri}: in each of {READ_ATTEMPTS} attempts, the newest version of the table was deleted "
            "before it was read. Keep more versions: increase the table property "
            "write.metadata.previous-versions-max.",
        )

    def commit(self, base: MetadataVersion | None, text: str) -> MetadataVersion:
        """Create the version after `base`.

        Args:
            base: None: create the first version of a new table.
            text: The table metadata as JSON.

        UnknownCommitState. After other LetheErrors nothing was committed.

        Raises:
            ConflictError: VersionTaken, if another writer created it: nothing was committed.
        """
        number = 1 if base is None else base.number + 1
        made = self._version(hadoop_version.file_of(number), text.encode())
        self._create(made)
        try:
            follows = self._follows(base, made)
        except ConflictError:
            raise
        except Exception as e:
            log.warning(
                "%s was created, but checking the previous version failed (%s)", made.location, type(e).__name__
            )
            follows = False
        if not follows:
            raise UnknownCommitState(
                "CommitStateUnknown",
                f"{made.location} was created, but the previous version is deleted or cannot be read. If many "
                "other writers committed in the meantime, the new version is not part of the table's "
                "history. Check the history before you try again.",
            )
        self._write_hint(number)
        self._clean_up(made)
        return made

    def _create(self, made: MetadataVersion) -> None:
        """Create the file. On return, the version certainly has this content."""
        failure: Exception | None = None
        try:
            if self._folder.create(made.name, made.content):
                return
        except WriteUnknown as e:  # an existing file may be ours
            failure = e
        except LetheError:
            raise
        except Exception as e:
            failure = e
        try:
            there = self._folder.read(made.name)
        except Exception as e:
            failure, there = failure or e, None
        if there == made.content:
            return
        if there is None and failure is not None:
            raise UnknownCommitState(
                "CommitStateUnknown",
                f"the storage did not report whether {made.location} was created ({type(failure).__name__}), "
                "and the file does not exist. It may still appear. Check the table's history before you try "
                "again.",
            ) from failure
        raise ConflictError(
            "VersionTaken", f"another writer created {made.location}. Nothing was committed. Plan again."
        ) from failure

    def _follows(self, base: MetadataVersion | None, made: MetadataVersion) -> bool:
        """Whether the created version is certainly the successor of `base`. If not, its number may have been used before."""
        if base is not None and self._folder.read(base.name) == base.content:
            return True
        newest = self._newest()
        if newest is not None and hadoop_version.version_of(newest) == made.number:
            return True
        if base is not None:
            return False
        current = self.current()
        if current is not None and current.uuid != made.uuid:
            self._folder.delete(made.name)  # another writer created a table, whose first version is already deleted
            raise ConflictError(
                "VersionTaken", f"{self.location}: another writer created a table there. Nothing was committed."
            )
        return True

    def _write_hint(self, number: int) -> None:
        """Write the version hint for other engines. Concurrent writers overwrite each other, so it may be outdated."""
        try:
            self._folder.replace(hadoop_version.HINT, str(number).encode())
        except Exception as e:
            log.warning("%s: %s could not be written (%s)", self._folder.uri, hadoop_version.HINT, type(e).__name__)

    def _clean_up(self, made: MetadataVersion) -> None:
        keep = hadoop_version.kept_versions(made.document.get("properties") or {})
        if keep is None:
            return
        try:
            for name in hadoop_version.outdated(self._folder.names("v"), made.number, keep):
                self._folder.delete(name)  # stop at a failure: versions are deleted oldest first
        except Exception as e:
            log.warning("%s: old versions could not be deleted (%s)", self._folder.uri, type(e).__name__)

    def _newest(self) -> str | None:
        return hadoop_version.newest(self._folder.names("v"), self._folder.uri)

    def _version(self, name: str, content: bytes) -> MetadataVersion:
        location = f"{self._folder.uri}/{name}"
        try:
            if not name.endswith((".metadata.json", ".metadata.json.gz")):
                raise ValueError(name)
            packed = ".gz" in name
            text = (gzip.decompress(content) if packed else content).decode()
            document = json.loads(text)
            if not isinstance(document.get("table-uuid"), str) or not isinstance(document.get("location"), str):
                raise ValueError(name)
        except (ValueError, EOFError, OSError, AttributeError, zlib.error) as e:
            raise TableError(
                "MetadataUnreadable",
                f"{location} is the newest version of the table and is not readable as its metadata "
                f"({len(content)} bytes, {type(e).__name__}). Lethe neither reads nor writes the table until "
                "it is, because the previous version may lack a commit. Restore the file. If the writer that "
                "created it has failed, delete it.",
            ) from e
        number = hadoop_version.version_of(name)
        assert number is not None
        return MetadataVersion(number, location, content, text, document)


class FolderCatalog(NoopCatalog):
    """A folder as a catalog.

    The file of a version is `<warehouse>/<namespace>/<table>/metadata/v<N>.metadata.json`. PyIceberg has no such catalog.

    Raises:
        InputError: UnsupportedCatalog, if the properties have no warehouse.
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
        """Load the newest version of a table.

        Raises:
            NoSuchTableError: There is no such table.
            InputError: InvalidName, UnsupportedStorage.
            TableError: The table is not the one that the request was made for.
            TransientError: A dependency is temporarily unavailable.
        """
        parts = self.identifier_to_tuple(identifier)
        found = self.metadata_folder(parts).current()
        if found is None:
            raise NoSuchTableError(f"there is no table in {self.location(parts)}")
        metadata = TableMetadataUtil.parse_raw(known_types_only(found.text))
        return Table(
            identifier=parts,
            metadata=metadata,
            metadata_location=found.location,
            io=file_io(self.properties, found.location),
            catalog=self,
        )

    def table_exists(self, identifier: str | Identifier) -> bool:
        """Whether the folder has a version of a table's metadata. Lists it and reads the newest version.

        Raises:
            InputError: InvalidName, UnsupportedStorage.
            TableError: MetadataUnreadable, MetadataAmbiguous.
            TransientError: A dependency is temporarily unavailable.
        """
        return self.metadata_folder(self.identifier_to_tuple(identifier)).current() is not None

    def metadata_folder(self, parts: Identifier) -> MetadataFolder:
        """Open the metadata folder of a table. Neither the folder nor the table needs to exist.

        Raises:
            InputError: InvalidName, UnsupportedStorage.
        """
        return MetadataFolder(open_folder(f"{self.location(parts)}/metadata", self.properties))

    def location(self, parts: Identifier) -> str:
        """The folder of a table.

        Raises:
            InputError: InvalidName, if a part of the name cannot be the name of a folder.
        """
        for part in parts:
            if not part or part in (".", "..") or "/" in part:
                raise InputError(
                    "InvalidName",
                    f"{'.'.join(parts)!r}: in the catalog {self.name} each part of a table's name must be the "
                    "name of a folder.",
                )
        return "/".join([self.properties[WAREHOUSE].rstrip("/"), *parts])
