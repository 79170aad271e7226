"""Renews the credentials that a REST catalog vends for the files of one table. They expire after minutes. I/O.

PyIceberg 0.12 has the request (`RestCatalog.load_credentials`) but never sends it; Iceberg's Java library renews credentials
itself. Invariants: properties with `names.VENDED_FOR` are for the files of that table only, because buffers have their own
credentials. Of what the catalog answers and of the properties of a table, only what `lethe.storage.properties` allows reaches a
client.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, cast

from botocore.credentials import RefreshableCredentials
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile
from pyiceberg.table import StagedTable, Table
from pyiceberg.typedef import EMPTY_DICT, Properties
from requests import Response, Session, codes
from requests.exceptions import ConnectionError as RequestConnectionError
from tenacity import Future, Retrying, retry_if_exception, retry_if_result, stop_after_attempt, wait_random_exponential
from urllib3.exceptions import ProtocolError

from lethe.base.errors import TransientError
from lethe.base.names import VENDED_FOR
from lethe.base.unknown_types import known_types_only
from lethe.storage import properties as allowed_properties
from lethe.storage.file_io import file_io

log = logging.getLogger(__name__)

_IO_IMPL: Final = "lethe.storage.vended.VendedFileIO"
_TIMEOUTS: Final = (5.0, 60.0)
"""Timeouts of requests to the catalog: seconds to connect, and until the server sends something."""
# Of a read that fails in passing. The pauses are random, of at most this many seconds times 1, 2, 4.
_ATTEMPTS: Final = 4
_WAIT_SECONDS: Final = 0.25
_OVERLOADED: Final = (429, 502, 503, 504)
# Credentials are renewed this long before they expire, or this fraction of their lifetime before, whichever is shorter.
_MARGIN_SECONDS: Final = 300.0
_MARGIN_FRACTION: Final = 0.2
_UNKNOWN_LIFE_SECONDS: Final = 300.0
"""Credentials without an expiry time are renewed after this time."""
_PAUSE_SECONDS: Final = 10.0
"""The time until the next request after a failed one."""
_EXPIRY: Final = "expires-at"
"""A property whose name contains this is an expiry time, in milliseconds since 1970."""
_OF_CATALOG: Final = (
    "uri",
    "warehouse",
    "prefix",
    "credential",
    "token",
    "oauth2-server-uri",
    "scope",
    "audience",
    "resource",
)
"""The properties that identify a catalog and its user."""

_vendors_lock: Final = threading.Lock()


def of_table(properties: Mapping[str, str], table: str) -> dict[str, str]:
    """The properties to open the files of a table with, for `lethe.storage.file_io` and for `lethe.storage.s3`.

    Args:
        properties: Of the catalog.
        table: The name of the table, "namespace.table".
    """
    is_rest = properties.get("type", "rest") == "rest" and properties.get("uri", "").startswith("http")
    if not is_rest or PY_IO_IMPL in properties:
        return dict(properties)
    return {**properties, PY_IO_IMPL: _IO_IMPL, VENDED_FOR: table}


@dataclass(frozen=True)
class Vended:
    """The properties that a catalog has vended."""

    config: Mapping[str, str] = field(repr=False)
    """Properties of a FileIO; empty: the catalog vends nothing."""
    due: float | None = None
    """When to renew them, by time.monotonic(); None: never."""
    ends: float | None = None
    """When they expire, by time.monotonic(); None: unknown."""

    @classmethod
    def of(cls, config: Mapping[str, str], now: float, monotonic: float) -> "Vended":
        """Make `Vended`.

        Args:
            now: The current time in seconds since 1970.
            monotonic: The same moment by time.monotonic().
        """
        ends = [float(v) / 1000 for k, v in config.items() if _EXPIRY in k and v.isdigit()]
        if ends:
            left = max(min(ends) - now, 0.0)
            ends_at = monotonic + left
            return cls(config, ends_at - min(_MARGIN_SECONDS, left * _MARGIN_FRACTION), ends_at)
        return cls(config, monotonic + _UNKNOWN_LIFE_SECONDS if config else None)


class Vendor:
    """Requests the credentials of one table from its catalog. Thread-safe."""

    def __init__(self, properties: Mapping[str, str], table: str) -> None:
        self._properties = properties
        self._table = table
        self._lock = threading.Lock()
        self._catalog: RetryingRestCatalog | None = None
        self._location = ""
        self._vended: Vended | None = None

    @classmethod
    def seeded(cls, catalog: "RetryingRestCatalog", table: Table) -> "Vendor":
        """Start with the credentials of a table that was loaded just now."""
        vendor = cls(catalog.properties, ".".join(table.name()))
        vendor._catalog, vendor._location = catalog, table.metadata_location
        vendor._vended = Vended.of(vended_with(catalog, table), time.time(), time.monotonic())
        return vendor

    def now(self) -> Vended:
        """The properties that are valid now. If the catalog does not answer, the previous ones are used until they expire.

        Raises:
            NoSuchTableError: There is no such table.
            Exception: PyIceberg's errors, if the catalog is unavailable.
        """
        with self._lock:
            current = self._vended
            if current is None or (current.due is not None and time.monotonic() >= current.due):
                self._vended = current = self._renewed(current)
            return current

    def _renewed(self, current: Vended | None) -> Vended:
        try:
            return Vended.of(self._ask(), time.time(), time.monotonic())
        except Exception as e:
            if current is None or current.ends is None or time.monotonic() + _PAUSE_SECONDS >= current.ends:
                raise
            log.warning("new credentials for table %s: %s; asked for again soon", self._table, type(e).__name__)
            return replace(current, due=time.monotonic() + _PAUSE_SECONDS)

    def _ask(self) -> Mapping[str, str]:
        if self._catalog is None:
            self._catalog = RetryingRestCatalog("lethe", **self._properties)
        if self._location:
            try:
                answered = self._catalog.load_credentials(self._table, self._location)
                vended = self._catalog.allowed(answered, self._table)
            except NotImplementedError:  # the catalog vends credentials only when it loads a table
                vended = {}
            if vended:
                return {**(self._vended.config if self._vended else {}), **vended}
        table = self._catalog.load_table(self._table)
        self._location = table.metadata_location
        return vended_with(self._catalog, table)


def vended_with(catalog: RestCatalog, table: Table) -> dict[str, str]:
    """The properties that a catalog has vended with a table and that differ from the catalog's."""
    return {k: v for k, v in table.config.items() if catalog.properties.get(k) != v}


_VENDORS_KEPT: Final = 256
"""Each has a client of the catalog, and committers serve the tables of thousands of Datasets."""
_vendors: OrderedDict[tuple[str, ...], Vendor] = OrderedDict()


def vendor_of(properties: Mapping[str, str]) -> Vendor:
    """The vendor of the table that `of_table` has named in the properties. All who need it soon after one another share one."""
    table = properties[VENDED_FOR]
    key = (table, *(str(properties.get(k)) for k in _OF_CATALOG))
    with _vendors_lock:
        vendor = _vendors.pop(key, None) or Vendor(_without_vendor(properties), table)
        _vendors[key] = vendor
        while len(_vendors) > _VENDORS_KEPT:
            _vendors.popitem(last=False)
        return vendor


def _without_vendor(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in properties.items() if k not in (PY_IO_IMPL, VENDED_FOR)}


class VendedFileIO(FileIO):
    """PyIceberg's own FileIO, created again each time the catalog has vended new credentials."""

    def __init__(self, properties: Mapping[str, Any], vendor: Vendor | None = None) -> None:
        """Create `VendedFileIO`.

        Args:
            properties: As `of_table` returns them.
        """
        super().__init__(dict(properties))
        self._vendor = vendor
        self._lock = threading.Lock()
        self._made: dict[str, tuple[Vended, FileIO]] = {}  # by URI scheme

    def new_input(self, location: str) -> InputFile:
        """A file to read with the credentials of now. It keeps them, so open it soon.

        Raises:
            NoSuchTableError: There is no such table.
            Exception: PyIceberg's errors, if the catalog is unavailable.
        """
        return self._current(location).new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """A file to write with the credentials of now. It keeps them, so open it soon.

        Raises:
            NoSuchTableError: There is no such table.
            Exception: PyIceberg's errors, if the catalog is unavailable.
        """
        return self._current(location).new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file with the credentials of now, even if the given file was made with older ones.

        Raises:
            NoSuchTableError: There is no such table.
            Exception: PyIceberg's errors, if the catalog is unavailable.
        """
        where = location if isinstance(location, str) else location.location
        self._current(where).delete(where)

    def _current(self, location: str) -> FileIO:
        if self._vendor is None:
            self._vendor = vendor_of(self.properties)
        vended, scheme = self._vendor.now(), location.partition(":")[0]
        with self._lock:
            made = self._made.get(scheme)
            if made is None or made[0] is not vended:
                own = _without_vendor(self.properties)
                made = vended, file_io(allowed_properties.with_vended(own, vended.config), location)
                self._made[scheme] = made
            return made[1]

    def __getstate__(self) -> dict[str, Any]:
        """Without credentials: another process requests its own from the catalog."""
        return {"properties": {k: v for k, v in self.properties.items() if isinstance(v, str)}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["properties"])  # type: ignore[misc]


class RetryingRestCatalog(RestCatalog):
    """PyIceberg's REST catalog, whose clients neither its answers nor the properties of its tables configure.

    A read that fails in passing is repeated, as Iceberg's Java client does it, and a request to a server that is silent ends
    with an error. No redirection is followed. Tables may have columns of types that PyIceberg does not know.
    """

    def __init__(self, name: str, **properties: str) -> None:
        self._configured = properties
        super().__init__(name, **properties)

    def allowed(self, answered: Mapping[str, str], table: str) -> dict[str, str]:
        """What the catalog may say about the files of a table.

        Raises:
            InputError: `UnsafeProperty`.
        """
        return allowed_properties.vended(answered, self._configured, f"table {table} of the catalog {self.name}")

    def _fetch_config(self) -> None:
        super()._fetch_config()
        self.properties = allowed_properties.configuration(
            self.properties, self._configured, f"the catalog {self.name}"
        )
        self.uri = self.properties["uri"]

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        """The FileIO of the catalog's own properties, without those of a table, which PyIceberg gives here."""
        del properties
        return file_io(self.properties, location or "")

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        config, io = self._opened_with(identifier_tuple, table_response)
        location = cast(str, table_response.metadata_location)
        return Table(identifier_tuple, table_response.metadata, location, io, self, config)

    def _response_to_staged_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> StagedTable:
        config, io = self._opened_with(identifier_tuple, table_response)
        location = cast(str, table_response.metadata_location)
        return StagedTable(identifier_tuple, table_response.metadata, location, io, self, config)

    def _opened_with(self, name: tuple[str, ...], response: TableResponse) -> tuple[dict[str, str], FileIO]:
        """What the catalog has vended with a table, and a FileIO with it."""
        location = response.metadata_location
        best = self._resolve_storage_credentials(response.storage_credentials, location)
        config = self.allowed({**response.config, **best}, ".".join(name))
        return config, file_io(allowed_properties.with_vended(self.properties, config), location or "")

    def _create_session(self) -> Session:
        session = super()._create_session()
        session.request = partial(_request, self.name, session.request)
        return session


def _request(catalog: str, send: Callable[..., Response], method: str, url: str, **arguments: Any) -> Response:
    arguments = {"timeout": _TIMEOUTS, **arguments, "allow_redirects": False}
    if method.upper() not in ("GET", "HEAD"):
        return _readable(_not_redirected(catalog, send(method, url, **arguments)))
    again = retry_if_exception(_ended_early) | retry_if_result(lambda a: a.status_code in _OVERLOADED)
    patient = Retrying(
        retry=again,
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(_WAIT_SECONDS),
        retry_error_callback=lambda state: cast(Future, state.outcome).result(),  # the last answer or error
    )
    return _readable(_not_redirected(catalog, cast(Response, patient(send, method, url, **arguments))))


def _not_redirected(catalog: str, answer: Response) -> Response:
    """Refuse a redirection: the request would go to another host, with the credentials of the catalog.

    Raises:
        TransientError: `CatalogUnavailable`.
    """
    if answer.is_redirect:
        raise TransientError(
            "CatalogUnavailable",
            f"the catalog {catalog} answered with a redirection ({answer.status_code}), which Lethe does not follow. Set its "
            "property uri to the address that answers itself.",
        )
    return answer


def _readable(answer: Response) -> Response:
    """An answer with the metadata of a table, with only types that PyIceberg knows."""
    if answer.status_code == codes.ok and b'"schemas"' in answer.content:
        answer._content = known_types_only(answer.content.decode()).encode()
        answer.encoding = "utf-8"
    return answer


def _ended_early(error: BaseException) -> bool:
    """Whether a connection was made, and ended without an answer."""
    return isinstance(error, RequestConnectionError) and bool(error.args) and isinstance(error.args[0], ProtocolError)


class VendingCatalog(RetryingRestCatalog):
    """A REST catalog whose tables stay readable after the credentials that they were loaded with have expired."""

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        table = super()._response_to_table(identifier_tuple, table_response)
        if vended_with(self, table):
            named = {**self.properties, VENDED_FOR: ".".join(identifier_tuple)}
            table.io = VendedFileIO(named, Vendor.seeded(self, table))
        return table


def for_boto3(properties: Mapping[str, str]) -> tuple[dict[str, str], RefreshableCredentials | None]:
    """The properties and credentials for a boto3 client of S3. boto3 renews the credentials.

    Args:
        properties: As `of_table` returns them.

    Returns:
        The credentials are None if the catalog vends none; then those of the properties apply.
    """
    vendor = vendor_of(properties)
    vended = vendor.now()
    current_properties = allowed_properties.with_vended(properties, vended.config)
    if "s3.access-key-id" not in vended.config:
        return current_properties, None

    def renewed() -> dict[str, str]:
        current = vendor.now()
        assert current.due is not None
        until = datetime.now(UTC) + timedelta(seconds=current.due - time.monotonic())
        return {
            "access_key": current.config["s3.access-key-id"],
            "secret_key": current.config["s3.secret-access-key"],
            "token": current.config.get("s3.session-token", ""),
            "expiry_time": until.isoformat(),
        }

    # The expiry time given to boto3 is when the vendor renews, so boto3 needs no margin of its own.
    credentials = RefreshableCredentials.create_from_metadata(
        renewed(), renewed, "vended", advisory_timeout=0, mandatory_timeout=0
    )
    return current_properties, credentials
