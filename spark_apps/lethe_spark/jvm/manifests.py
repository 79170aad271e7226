"""Iceberg's own rewriting of manifests, told by Python which of them and what goes into which new one.

It asks about every data file, from several threads. The answers go over as one JSON, and Java looks them up.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.handles import as_interface, getter, java_class, method
from lethe_spark.jvm.table import IcebergTable


def rewriting(table: IcebergTable, target: Any, replaced: frozenset[str], manifest_of: Mapping[str, int]) -> Any:
    """The pending update that writes the data files of some manifests into new ones. Nothing is read or written before it is
    committed; manifests that have gone by then are passed over, with what they list.

    Args:
        target: The table, or a transaction on it.
        replaced: Paths of manifests.
        manifest_of: By the path of each live data file in one of them, a number: files of one number come into one new manifest.
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
    """Manifests of delete files as Iceberg holds them: `removed` go, and list the same live files as `added`, in `paths`."""

    removed: tuple[Any, ...] = ()
    added: tuple[Any, ...] = ()
    paths: tuple[str, ...] = ()


@reading("writing manifests of deletes")
def without_removed(
    table: IcebergTable, snapshot_id: int, replaced: Mapping[str, Mapping[tuple[str, int | None], int]]
) -> DeleteManifests:
    """Write manifests of delete files anew without the entries of files that were removed, and commit nothing.

    Iceberg's own rewriting is for those of data files.

    Args:
        replaced: By the path of a manifest of this snapshot, which snapshot added each live delete file: by its path and, of a
            deletion vector, its offset.
    Raises: TransientError. What was written by then stays in storage.
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
