"""Rewrite manifests with Iceberg. Python decides which ones, and which file goes into which new manifest.

Iceberg asks for each data file, from several threads. The answers are sent as one JSON document, and Java looks them up.
"""

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.handles import as_interface, getter, java_class, method
from lethe_spark.jvm.table import IcebergTable


def rewriting(table: IcebergTable, target: Any, replaced: frozenset[str], manifest_of: Mapping[str, int]) -> Any:
    """The pending update that moves the data files of some manifests into new ones. Nothing is read or written before the
    commit. Manifests that no longer exist then are skipped, with the files that they list.

    Args:
        target: The table, or a transaction on it.
        replaced: Paths of manifests.
        manifest_of: A number for each live data file, by path. Files with the same number go into the same new manifest.
    """
    jvm = table.jvm
    handles = jvm.java.lang.invoke.MethodHandles
    mapper = jvm.org.apache.iceberg.util.JsonUtil.mapper()

    def parsed(document: object, class_name: str) -> Any:
        return mapper.readValue(json.dumps(document), java_class(jvm, class_name))

    wanted = parsed(sorted(replaced), "java.util.HashSet")
    contains = method(jvm, "java.util.Set", "contains", "java.lang.Object").bindTo(wanted)
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

    # Iceberg's manifests to remove.
    removed: tuple[Any, ...] = ()
    # Iceberg's manifests to add.
    added: tuple[Any, ...] = ()
    # The paths of the added ones.
    paths: tuple[str, ...] = ()


@reading("writing manifests of deletes")
def without_removed(
    table: IcebergTable, snapshot_id: int, replaced: Mapping[str, Mapping[tuple[str, int | None], int]]
) -> DeleteManifests:
    """Rewrite manifests of delete files without the entries of removed files, and commit nothing.

    Iceberg's own rewriting supports manifests of data files only.

    Args:
        replaced: The manifests of this snapshot to rewrite, by path. For each live delete file of it, by path and, for a
            deletion vector, offset: the snapshot that added the file.
    Raises: TransientError. Files that were written by then stay in storage.
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
                offset = file.contentOffset()
                snapshot = added_by[str(file.location()), None if offset is None else int(offset)]
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
    found: list[Any] = []
    for manifest in each(table.java.snapshot(snapshot_id).deleteManifests(io)):
        reader = api.ManifestFiles.readDeleteManifest(manifest, io, table.java.specs())
        try:
            found += [file.copy() for file in each(reader) if str(file.location()) in paths]
        finally:
            reader.close()
    return tuple(found)
