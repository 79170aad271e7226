"""Schemas of a schema registry that speaks Confluent's protocol. I/O: HTTP."""

import json
import threading
from typing import Any, Final

import fastavro
import requests
from lethe.base.errors import TransientError
from lethe.ingest.buffer_store import BadFile

from lethe_inlet.clusters import Registry

SECONDS: Final = (3.05, 10)  # to connect, and to read
# A message begins with this byte, and four bytes with the id of its schema.
MAGIC: Final = 0
HEADER_BYTES: Final = 5


def framed(value: bytes) -> tuple[int, bytes]:
    """The id of the schema and the payload of a message. Raises: BadFile, if it has no such frame."""
    if len(value) < HEADER_BYTES or value[0] != MAGIC:
        raise BadFile(
            "NotFramed",
            "the message does not begin with a zero byte and the id of a schema. Correct the producer, or set framing: None",
        )
    return int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:]


class Schemas:
    """The Avro schemas of a registry. A schema never changes, so each is asked for once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._known: dict[int, Any] = {}

    def get(self, number: int) -> Any:
        """A schema as fastavro takes it. Raises: BadFile, if there is none that can be used; TransientError (`RegistryAway`)."""
        with self._lock:
            if number not in self._known:
                self._known[number] = self._fetched(number)
            found = self._known[number]
        if isinstance(found, BadFile):
            raise found
        return found

    def _fetched(self, number: int) -> Any:
        document = self._asked(number)
        if document is None:
            return BadFile("SchemaNotFound", f"the schema registry has no schema {number}")
        if document.get("schemaType", "AVRO") != "AVRO":
            return BadFile("SchemaMismatch", f"schema {number} of the registry is not an Avro schema")
        return parsed(str(document.get("schema", "")), f"schema {number} of the registry")

    def _asked(self, number: int) -> Any:
        registry = self._registry
        auth = (registry.username, registry.password) if registry.username else None
        url = f"{registry.url.rstrip('/')}/schemas/ids/{number}"
        try:
            answer = requests.get(url, auth=auth, timeout=SECONDS, verify=registry.ca_file or True)
        except requests.RequestException as e:
            raise _away(type(e).__name__) from None
        if answer.status_code == requests.codes.not_found:
            return None
        if answer.status_code != requests.codes.ok:
            raise _away(f"HTTP {answer.status_code}")
        try:
            found = answer.json()
        except ValueError:
            raise _away("no JSON") from None
        return found if isinstance(found, dict) else {}


def parsed(text: str, what: str) -> Any:
    """An Avro schema as fastavro takes it; a BadFile that says why it cannot be used."""
    try:
        found = fastavro.parse_schema(json.loads(text))
    except Exception as e:  # of any kind: the text is someone else's
        return BadFile("SchemaMismatch", f"{what} cannot be read as an Avro schema ({type(e).__name__})")
    if not isinstance(found, dict) or found.get("type") != "record":
        return BadFile(
            "SchemaMismatch", f"{what} is not a record, expected a record with the table's columns as fields"
        )
    return found


def _away(why: str) -> TransientError:
    return TransientError(
        "RegistryAway", f"The schema registry does not answer ({why}). Nothing is lost; reading goes on when it does."
    )
