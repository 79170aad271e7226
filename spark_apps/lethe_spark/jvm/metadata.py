"""Makes and changes table metadata with Iceberg's Java code: documents, manifests, and the expiry of snapshots. I/O."""

import json
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lethe.base.errors import ConflictError, InputError
from lethe.iceberg.delete_entries import DeletesKey
from lethe.uri import local_path, without_values

from lethe_spark.jvm.data_files import key_of_deletes
from lethe_spark.jvm.errors import ICEBERG, JvmError, is_a, java_message, reading, transient
from lethe_spark.jvm.gateway import as_interface, each, getter, java_class, java_list, json_mapper, method, names_of
from lethe_spark.jvm.table import DATA_PATH, IcebergTable

_FOLDER_PROPERTIES: Final = (DATA_PATH, "write.metadata.path")
"""The table properties that name folders of the table, which need not be below its location."""


def rewriting(table: IcebergTable, target: Any, replaced: frozenset[str], manifest_of: Mapping[str, int]) -> Any:
    """The pending update that moves the data files of some manifests into new ones.

    Nothing is read or written before the commit. Manifests that no longer exist then are skipped, with the files that they list.

    Python decides which manifests, and which file goes into which new manifest. Iceberg asks for each data file, from several
    threads. The answers are sent as one JSON document, and Java looks them up.

    Args:
        target: The table, or a transaction on it.
        replaced: Paths of manifests.
        manifest_of: A number for each live data file, by path. Files with the same number go into the same new manifest.
    """
    jvm = table.jvm
    handles = jvm.java.lang.invoke.MethodHandles
    mapper = json_mapper(jvm)

    def parsed(document: object, class_name: str) -> Any:
        return mapper.readValue(json.dumps(document), java_class(jvm, class_name))

    replaced_set = parsed(sorted(replaced), "java.util.HashSet")
    contains = method(jvm, "java.util.Set", "contains", "java.lang.Object").bindTo(replaced_set)
    numbers = parsed(dict(manifest_of), "java.util.HashMap")
    look_up = method(jvm, "java.util.Map", "get", "java.lang.Object").bindTo(numbers)
    is_wanted = handles.filterReturnValue(getter(jvm, "org.apache.iceberg.ManifestFile", "path"), contains)
    number = handles.filterReturnValue(getter(jvm, "org.apache.iceberg.ContentFile", "location"), look_up)
    return (
        target.rewriteManifests()
        .rewriteIf(as_interface(jvm, "java.util.function.Predicate", is_wanted))
        .clusterBy(as_interface(jvm, "java.util.function.Function", number))
    )


@dataclass(frozen=True)
class DeleteManifests:
    """Manifests of delete files, to be replaced by others that list the same live files."""

    removed: tuple[Any, ...] = ()
    """Iceberg's manifests to remove."""
    added: tuple[Any, ...] = ()
    """Iceberg's manifests to add."""
    paths: tuple[str, ...] = ()
    """The paths of the added ones."""


@reading("writing manifests of deletes")
def without_removed(
    table: IcebergTable, snapshot_id: int, replaced: Mapping[str, Mapping[DeletesKey, int]]
) -> DeleteManifests:
    """Rewrite manifests of delete files without the entries of removed files, and commit nothing.

    Iceberg's own rewriting supports manifests of data files only.

    Args:
        replaced: The manifests of this snapshot to rewrite, by path. For each live delete file of it: the snapshot that added
            the file.

    Files that were written by then stay in storage.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    api, io = table.jvm.org.apache.iceberg, table.java.io()
    removed: list[Any] = []
    added: list[Any] = []
    for manifest in each(table.java.snapshot(snapshot_id).deleteManifests(io)):
        added_by = replaced.get(str(manifest.path()))
        if added_by is None:
            continue
        removed.append(manifest)
        if not added_by:
            continue
        path = table.java.operations().metadataFileLocation(f"{uuid.uuid4()}-m0.avro")
        spec = table.java.specs().get(manifest.partitionSpecId())
        writer = api.ManifestFiles.writeDeleteManifest(table.format_version, spec, io.newOutputFile(path), None)
        reader = api.ManifestFiles.readDeleteManifest(manifest, io, table.java.specs())
        try:
            for file in each(reader):
                snapshot = added_by[key_of_deletes(file)]
                writer.existing(file.copy(), snapshot, file.dataSequenceNumber(), file.fileSequenceNumber())
        finally:
            reader.close()
            writer.close()
        added.append(writer.toManifestFile())
    return DeleteManifests(tuple(removed), tuple(added), tuple(str(m.path()) for m in added))


@reading("reading delete files")
def delete_files_at(table: IcebergTable, snapshot_id: int, paths: Collection[str]) -> tuple[Any, ...]:
    """Iceberg's objects of the live delete files of a snapshot with these paths."""
    api, io = table.jvm.org.apache.iceberg, table.java.io()
    files: list[Any] = []
    for manifest in each(table.java.snapshot(snapshot_id).deleteManifests(io)):
        reader = api.ManifestFiles.readDeleteManifest(manifest, io, table.java.specs())
        try:
            files += [file.copy() for file in each(reader) if str(file.location()) in paths]
        finally:
            reader.close()
    return tuple(files)


def expire(table: IcebergTable, snapshot_ids: Collection[int]) -> int:
    """Expire these snapshots, and delete the files that no remaining snapshot reaches.

    Iceberg would also expire all snapshots older than five days. Setting the age limit to the epoch prevents that. Whatever a
    branch or tag says of its own retention (`max-snapshot-age-ms`, `max-ref-age-ms`) is followed too, as by any expiry.

    Returns:
        The number of expired snapshots.

    Raises:
        ConflictError: `SnapshotReferenced`, if a tag or branch holds one of them.
        TransientError: A dependency is temporarily unavailable.
    """
    table.refresh()
    existing = {int(s.snapshotId()) for s in each(table.java.snapshots())}
    expiring = sorted(existing.intersection(snapshot_ids))
    if not expiring:
        return 0
    try:
        update = table.java.expireSnapshots().expireOlderThan(0).cleanExpiredFiles(True)
        for snapshot_id in expiring:
            update = update.expireSnapshotId(snapshot_id)
        update.commit()
    except JvmError as e:
        if "referenced" in java_message(e):
            raise ConflictError(
                "SnapshotReferenced",
                f"{table.full_name}: a tag or branch holds one of the snapshots to expire "
                f"({java_message(e).splitlines()[0][:200]}). Nothing was expired.",
            ) from e
        raise transient(e, f"expiring {len(expiring)} snapshots of {table.full_name}") from e
    table.refresh()
    return len(expiring)


def remove_files(table: IcebergTable, paths: Iterable[str]) -> int:
    """Delete files through the table's FileIO. A file that does not exist is not an error.

    Raises:
        InputError: `OutsideTable`, before anything is deleted, for a path outside the table's folders.
    """
    sorted_paths = sorted(set(paths))
    properties = table.properties
    allowed = {table.location, *(properties.get(name) or table.location for name in _FOLDER_PROPERTIES)}
    folders = tuple(f"{local_path(folder).rstrip('/')}/" for folder in allowed)
    for path in sorted_paths:
        if not local_path(path).startswith(folders) or ".." in path.split("/"):
            raise InputError(
                "OutsideTable",
                f"{table.full_name}: did not delete {without_values(path)}, because it is not below {table.location} or the "
                f"folders that {' and '.join(_FOLDER_PROPERTIES)} name.",
            )
    try:
        utility = table.jvm.org.apache.iceberg.CatalogUtil
        utility.deleteFiles(table.java.io(), java_list(table.jvm, sorted_paths), "unpublished", True)
    except JvmError as e:
        raise transient(e, f"deleting {len(sorted_paths)} files of {table.full_name}") from e
    return len(sorted_paths)


def forget_statistics(table: IcebergTable) -> tuple[str, ...]:
    """Remove all statistics from the table's metadata, in one commit without a snapshot.

    Returns:
        The paths of their files, which stay in storage.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    table.refresh()
    statistics = list(each(table.java.statisticsFiles()))
    of_partitions = list(each(table.java.partitionStatisticsFiles()))
    if not statistics and not of_partitions:
        return ()
    try:
        transaction = table.java.newTransaction()
        update = transaction.updateStatistics()
        for file in statistics:
            update = update.removeStatistics(file.snapshotId())
        update.commit()
        partitions = transaction.updatePartitionStatistics()
        for file in of_partitions:
            partitions = partitions.removePartitionStatistics(file.snapshotId())
        partitions.commit()
        transaction.commitTransaction()
    except JvmError as e:
        raise transient(e, f"dropping the statistics of {table.full_name}") from e
    table.refresh()
    return tuple(str(file.path()) for file in (*statistics, *of_partitions))


class JvmMetadata:
    """Carries out the requests of Iceberg's REST client, as a REST catalog does."""

    def __init__(self, gateway: Any) -> None:
        """Of a session, or of a JVM without one; see `lethe_spark.jvm.gateway`."""
        self._jvm = names_of(gateway)

    def created(self, location: str, request: str) -> str:
        """The metadata of a new table.

        Args:
            request: A CreateTableRequest of Iceberg's REST protocol.

        Raises:
            InputError: InvalidTableDefinition.
        """
        api = self._jvm.org.apache.iceberg
        document = json.loads(request)
        spec, order = document.get("partition-spec"), document.get("write-order")
        properties = self._jvm.java.util.HashMap()
        for key, value in (document.get("properties") or {}).items():
            properties.put(key, value)
        try:
            schema = api.SchemaParser.fromJson(json.dumps(document["schema"]))
            made = api.TableMetadata.newTableMetadata(
                schema,
                api.PartitionSpecParser.fromJson(schema, json.dumps(spec))
                if spec
                else api.PartitionSpec.unpartitioned(),
                api.SortOrderParser.fromJson(schema, json.dumps(order)) if order else api.SortOrder.unsorted(),
                location,
                properties,
            )
            return str(api.TableMetadataParser.toJson(made))
        except JvmError as e:
            raise InputError("InvalidTableDefinition", f"{location}: {_first_line(e)}") from e

    def updated(self, location: str, metadata: str, request: str) -> str | None:
        """The metadata after a change. None: the request changes nothing.

        Args:
            location: The file with `metadata`.
            request: An UpdateTableRequest of Iceberg's REST protocol.

        Raises:
            ConflictError: CommitFailed, if a requirement of the request does not hold.
            InputError: InvalidChange.
        """
        api = self._jvm.org.apache.iceberg
        try:
            update_request = api.rest.requests.UpdateTableRequestParser.fromJson(request)
            base = api.TableMetadataParser.fromJson(location, metadata)
            for requirement in each(update_request.requirements()):
                requirement.validate(base)
            builder = api.TableMetadata.buildFrom(base)
            for update in each(update_request.updates()):
                update.applyTo(builder)
            made = builder.build()
            return None if made.changes().isEmpty() else str(api.TableMetadataParser.toJson(made))
        except JvmError as e:
            if self._is_stale(e):
                raise ConflictError("CommitFailed", f"{_first_line(e)} ({location})") from e
            raise InputError("InvalidChange", f"{location}: {_first_line(e)}") from e

    def completed(self, location: str, request: str) -> str:
        """The first metadata of a table that a client staged.

        Args:
            request: An UpdateTableRequest, whose updates make up the whole table.

        Raises:
            ConflictError: CommitFailed, if it requires an existing table.
            InputError: InvalidTableDefinition.
        """
        api = self._jvm.org.apache.iceberg
        versions = [u["format-version"] for u in json.loads(request)["updates"] if "format-version" in u]
        try:
            update_request = api.rest.requests.UpdateTableRequestParser.fromJson(request)
            for requirement in each(update_request.requirements()):
                requirement.validate(None)
            builder = api.TableMetadata.buildFromEmpty(*versions[:1])
            for update in each(update_request.updates()):
                update.applyTo(builder)
            return str(api.TableMetadataParser.toJson(builder.build()))
        except JvmError as e:
            if self._is_stale(e):
                raise ConflictError("CommitFailed", f"{_first_line(e)} ({location})") from e
            raise InputError("InvalidTableDefinition", f"{location}: {_first_line(e)}") from e

    def _is_stale(self, error: BaseException) -> bool:
        """Whether a requirement does not hold, or another commit has used the sequence number of a snapshot."""
        stale = ("CommitFailedException", "ValidationException")
        return any(is_a(self._jvm, error, ICEBERG + name) for name in stale)


def _first_line(error: Any) -> str:
    return (java_message(error).strip().splitlines() or [type(error).__name__])[0][:300]


def escape_requests(gateway: Any) -> None:
    """Make Iceberg's REST client escape all characters that are not ASCII in its JSON. Safe to repeat.

    The client sends its JSON as ISO 8859-1 (https://github.com/apache/iceberg/pull/17646), which replaces the characters of
    other alphabets by question marks. The setting applies to the whole JVM, and does not change the meaning of requests.

    Raises:
        InputError: UnsupportedIceberg, if this session's Iceberg has no such setting.
    """
    java = names_of(gateway).java.lang
    object_mapper, shaded = (
        "org.apache.iceberg.rest.RESTObjectMapper",
        "org.apache.iceberg.shaded.com.fasterxml.jackson.core",
    )
    try:
        loader = java.Thread.currentThread().getContextClassLoader()
        mapper = loader.loadClass(object_mapper).getDeclaredMethod("mapper", gateway.new_array(java.Class, 0))
        mapper.setAccessible(True)
        feature = java.Enum.valueOf(loader.loadClass(f"{shaded}.JsonGenerator$Feature"), "ESCAPE_NON_ASCII")
        mapper.invoke(None, gateway.new_array(java.Object, 0)).getFactory().enable(feature)
    except JvmError as e:
        raise InputError(
            "UnsupportedIceberg",
            "this session's Iceberg runtime cannot send characters that are not ASCII, so Lethe does not serve catalogs of type "
            "hadoop to it. Use the version that Lethe is tested with (lethe/jars/jars.txt).",
        ) from e
