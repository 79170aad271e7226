"""Data files that others wrote, as Iceberg's own objects: thousands in a few calls.

A call from Python into the JVM costs a tenth of a millisecond or more, and building one data file takes twenty. So they go
over as JSON, the form in which Iceberg's REST protocol sends them, and Java's streams do the rest: method handles stand
for the lambdas that Python cannot write.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.table import IcebergTable

# About two kilobytes each, as one text.
AT_ONCE: Final = 2000


@reading("handing data files over")
def data_files(table: IcebergTable, documents: Sequence[str]) -> Any:
    """A Java list of data files.

    Args:
        documents: JSON objects, as `ContentFileParser` of Iceberg writes them.
    """
    api = table.jvm
    mapper = api.org.apache.iceberg.util.JsonUtil.mapper()
    specs = table.gateway.new_array(api.java.lang.Object, 1)
    specs[0] = table.java.specs()
    parse = _method(api, "org.apache.iceberg.ContentFileParser", "fromJson", "java.util.Map")
    handles = api.java.lang.invoke.MethodHandles
    parser = _as(api, "java.util.function.Function", handles.insertArguments(parse, 1, specs))
    files = api.java.util.ArrayList(len(documents))
    for chunk in _chunks(documents):
        nodes = mapper.readTree(f"[{','.join(chunk)}]")
        stream = api.java.util.stream.StreamSupport.stream(nodes.spliterator(), False)
        files.addAll(stream.map(parser).toList())
    return files


def append_all(table: IcebergTable, update: Any, files: Any) -> None:
    """Add each file of a Java list to Iceberg's pending append."""
    append = _method(table.jvm, "org.apache.iceberg.AppendFiles", "appendFile", "org.apache.iceberg.DataFile")
    files.forEach(_as(table.jvm, "java.util.function.Consumer", append.bindTo(update)))


def _method(jvm: Any, class_name: str, name: str, last_parameter: str) -> Any:
    """A handle to the public method of this name whose last parameter has this type."""
    for method in _class(jvm, class_name).getMethods():
        parameters = list(method.getParameterTypes())
        if method.getName() == name and parameters and parameters[-1].getName() == last_parameter:
            return jvm.java.lang.invoke.MethodHandles.publicLookup().unreflect(method)
    raise RuntimeError(f"this Iceberg has no {class_name}.{name}(…, {last_parameter})")


def _as(jvm: Any, interface: str, handle: Any) -> Any:
    proxies = jvm.java.lang.invoke.MethodHandleProxies
    return proxies.asInterfaceInstance(_class(jvm, interface), handle)


def _class(jvm: Any, name: str) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)


def _chunks(documents: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(documents)
    while chunk := list(islice(rest, AT_ONCE)):
        yield chunk
