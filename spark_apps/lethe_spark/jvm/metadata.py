"""Make and change table metadata with Iceberg's Java code: documents in, documents out. No I/O except calls into the JVM.

Also a setting of Iceberg's REST client, without which it changes documents.
"""

import json
from typing import Any

from lethe.base.errors import ConflictError, InputError

from lethe_spark.jvm.errors import ICEBERG, JvmError, is_a, java_message
from lethe_spark.jvm.gateway import each


class JvmMetadata:
    """Carries out the requests of Iceberg's REST client, as a REST catalog does."""

    def __init__(self, gateway: Any) -> None:
        """Of a session, or of a JVM without one; see `lethe_spark.jvm.gateway`."""
        self._jvm = gateway.jvm

    def created(self, location: str, request: str) -> str:
        """The metadata of a new table.

        Args:
            request: A CreateTableRequest of Iceberg's REST protocol.
        Raises: InputError (InvalidTableDefinition).
        """
        api = self._jvm.org.apache.iceberg
        wanted = json.loads(request)
        spec, order = wanted.get("partition-spec"), wanted.get("write-order")
        properties = self._jvm.java.util.HashMap()
        for key, value in (wanted.get("properties") or {}).items():
            properties.put(key, value)
        try:
            schema = api.SchemaParser.fromJson(json.dumps(wanted["schema"]))
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
        Raises: ConflictError (CommitFailed), if a requirement of the request does not hold; InputError (InvalidChange).
        """
        api = self._jvm.org.apache.iceberg
        try:
            wanted = api.rest.requests.UpdateTableRequestParser.fromJson(request)
            base = api.TableMetadataParser.fromJson(location, metadata)
            for requirement in each(wanted.requirements()):
                requirement.validate(base)
            builder = api.TableMetadata.buildFrom(base)
            for update in each(wanted.updates()):
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
        Raises: ConflictError (CommitFailed), if it requires an existing table; InputError (InvalidTableDefinition).
        """
        api = self._jvm.org.apache.iceberg
        versions = [u["format-version"] for u in json.loads(request)["updates"] if "format-version" in u]
        try:
            wanted = api.rest.requests.UpdateTableRequestParser.fromJson(request)
            for requirement in each(wanted.requirements()):
                requirement.validate(None)
            builder = api.TableMetadata.buildFromEmpty(*versions[:1])
            for update in each(wanted.updates()):
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

    Raises: InputError (UnsupportedIceberg), if this session's Iceberg has no such setting.
    """
    java = gateway.jvm.java.lang
    rest, shaded = "org.apache.iceberg.rest.RESTObjectMapper", "org.apache.iceberg.shaded.com.fasterxml.jackson.core"
    try:
        loader = java.Thread.currentThread().getContextClassLoader()
        mapper = loader.loadClass(rest).getDeclaredMethod("mapper", gateway.new_array(java.Class, 0))
        mapper.setAccessible(True)
        feature = java.Enum.valueOf(loader.loadClass(f"{shaded}.JsonGenerator$Feature"), "ESCAPE_NON_ASCII")
        mapper.invoke(None, gateway.new_array(java.Object, 0)).getFactory().enable(feature)
    except JvmError as e:
        raise InputError(
            "UnsupportedIceberg",
            "this session's Iceberg runtime cannot send characters that are not ASCII, so Lethe does not serve catalogs of type "
            "hadoop to it. Use the version that Lethe is tested with (lethe/jars/jars.txt).",
        ) from e
