"""Iceberg's own rewriting of manifests, told by Python which of them and what goes into which new one.

It asks about every data file, from several threads. The answers go over as one JSON, and Java looks them up.
"""

import json
from collections.abc import Mapping
from typing import Any

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
