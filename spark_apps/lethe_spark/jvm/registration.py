"""Make Iceberg's objects for data files that other programs wrote: thousands of files in a few calls.

A call from Python into the JVM takes at least a tenth of a millisecond, and building one data file needs twenty calls. So the
files are sent as JSON, in the format of Iceberg's REST protocol, and Java parses them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.handles import as_interface, method
from lethe_spark.jvm.table import IcebergTable

# Characters of JSON per call, unless one file alone has more. A file has about two thousand; Java's parser needs ten times as
# much memory.
CHARACTERS_AT_ONCE: Final = 1024 * 1024


@reading("making data files")
def data_files(table: IcebergTable, documents: Sequence[str]) -> Any:
    """A Java list of data files.

    Args:
        documents: JSON objects, as `ContentFileParser` of Iceberg writes them.
    """
    api = table.jvm
    mapper = api.org.apache.iceberg.util.JsonUtil.mapper()
    specs = table.gateway.new_array(api.java.lang.Object, 1)
    specs[0] = table.java.specs()
    parse = method(api, "org.apache.iceberg.ContentFileParser", "fromJson", "java.util.Map")
    handles = api.java.lang.invoke.MethodHandles
    parser = as_interface(api, "java.util.function.Function", handles.insertArguments(parse, 1, specs))
    files = api.java.util.ArrayList(len(documents))
    for chunk in chunks(documents):
        nodes = mapper.readTree(f"[{','.join(chunk)}]")
        stream = api.java.util.stream.StreamSupport.stream(nodes.spliterator(), False)
        files.addAll(stream.map(parser).toList())
    return files


def append_all(table: IcebergTable, update: Any, files: Any) -> None:
    """Add each file of a Java list to Iceberg's pending append."""
    append = method(table.jvm, "org.apache.iceberg.AppendFiles", "appendFile", "org.apache.iceberg.DataFile")
    files.forEach(as_interface(table.jvm, "java.util.function.Consumer", append.bindTo(update)))


def chunks(documents: Sequence[str]) -> Iterator[list[str]]:
    """Divide documents, in their order, into chunks of up to CHARACTERS_AT_ONCE. Pure."""
    chunk: list[str] = []
    size = 0
    for document in documents:
        if chunk and size + len(document) > CHARACTERS_AT_ONCE:
            yield chunk
            chunk, size = [], 0
        chunk.append(document)
        size += len(document)
    if chunk:
        yield chunk
