"""Credentials that a REST catalog vends for the files of one table, and that expire after minutes: asked for again in time. I/O.

Iceberg's Java library does this itself if the catalog names an endpoint for it (`client.refresh-credentials-endpoint`). PyIceberg
0.12 has the request (`RestCatalog.load_credentials`) and never makes it: a FileIO keeps the credentials that came with its table.

Invariant: properties that have `names.VENDED_FOR` are for the files of that table only. Buffers have credentials of their own.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from botocore.credentials import RefreshableCredentials
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.table import Table

from lethe.base.names import VENDED_FOR

log = logging.getLogger(__name__)

_IO_IMPL: Final = "lethe.storage.vended.VendedFileIO"
# New credentials are due this long before the old ones expire, or at this fraction of their life before, if that is less.
_MARGIN_SECONDS: Final = 300.0
_MARGIN_FRACTION: Final = 0.2
# After this time also if the catalog did not say when they expire.
_UNKNOWN_LIFE_SECONDS: Final = 300.0
# After a catalog did not answer.
_PAUSE_SECONDS: Final = 10.0
# What a catalog vends, among the properties of a FileIO; a name with the last of these says when, in milliseconds since 1970.
_OF_STORES: Final = ("s3.", "gcs.", "adls.", "oss.", "client.region")
_EXPIRY: Final = "expires-at"
# By which a catalog, and who asks it, is known.
_OF_CATALOG: Final = ("uri", "warehouse", "prefix", "credential", "token", "oauth2-server-uri", "scope")


def of_table(properties: Mapping[str, str], table: str) -> dict[str, str]:
    """The properties to open the files of a table with, for PyIceberg's `load_file_io` and for `lethe.storage.s3`.

    Args:
        properties: The catalog's.
        table: Its name, "namespace.table".
    """
    is_rest = properties.get("type", "rest") == "rest" and properties.get("uri", "").startswith("http")
    if not is_rest or PY_IO_IMPL in properties:
        return dict(properties)
    return {**properties, PY_IO_IMPL: _IO_IMPL, VENDED_FOR: table}


@dataclass(frozen=True)
class Vended:
    """What a catalog has vended: properties of a FileIO."""

    # Empty: the catalog vends nothing.
    config: Mapping[str, str] = field(repr=False)
    # When to ask again, by time.monotonic(). None: never.
    due: float | None = None
    # When it expires, by time.monotonic(). None: that is not known.
    ends: float | None = None

    @classmethod
    def of(cls, config: Mapping[str, str], now: float, monotonic: float) -> "Vended":
        """Args:
        now: In seconds since 1970, as the catalog counts them.
        monotonic: The same moment by time.monotonic().
        """
        ends = [float(v) / 1000 for k, v in config.items() if _EXPIRY in k and v.isdigit()]
        if ends:
            left = max(min(ends) - now, 0.0)
            ends_at = monotonic + left
            return cls(config, ends_at - min(_MARGIN_SECONDS, left * _MARGIN_FRACTION), ends_at)
        return cls(config, monotonic + _UNKNOWN_LIFE_SECONDS if config else None)


class Vendor:
    """A catalog, asked for the credentials of one table. Threads may share it."""

    def __init__(self, properties: Mapping[str, str], table: str) -> None:
        self._properties = properties
        self._table = table
        self._lock = threading.Lock()
        self._catalog: RestCatalog | None = None
        self._location = ""
        self._vended: Vended | None = None

    @classmethod
    def seeded(cls, catalog: RestCatalog, table: Table) -> "Vendor":
        """With what a table came with, which was loaded just now."""
        vendor = cls(catalog.properties, ".".join(table.name()))
        vendor._catalog, vendor._location = catalog, table.metadata_location
        vendor._vended = Vended.of(vended_with(catalog, table), time.time(), time.monotonic())
        return vendor

    def now(self) -> Vended:
        """What is valid now. While the catalog does not answer, the last answer counts until it expires.

        Raises: NoSuchTableError; what PyIceberg raises of a catalog that is away.
        """
        with self._lock:
            known = self._vended
            if known is None or (known.due is not None and time.monotonic() >= known.due):
                self._vended = known = self._renewed(known)
            return known

    def _renewed(self, known: Vended | None) -> Vended:
        try:
            return Vended.of(self._ask(), time.time(), time.monotonic())
        except Exception as e:
            if known is None or known.ends is None or time.monotonic() + _PAUSE_SECONDS >= known.ends:
                raise
            log.warning("new credentials for table %s: %s; asked for again soon", self._table, type(e).__name__)
            return replace(known, due=time.monotonic() + _PAUSE_SECONDS)

    def _ask(self) -> Mapping[str, str]:
        if self._catalog is None:
            self._catalog = RestCatalog("lethe", **self._properties)
        if self._location:
            try:
                vended = self._catalog.load_credentials(self._table, self._location)
            except NotImplementedError:  # it vends credentials together with a table only
                vended = {}
            if vended:
                return {**(self._vended.config if self._vended else {}), **vended}
        table = self._catalog.load_table(self._table)
        self._location = table.metadata_location
        return vended_with(self._catalog, table)


def vended_with(catalog: RestCatalog, table: Table) -> dict[str, str]:
    """What a catalog has vended with a table: what the properties of its FileIO have beside the catalog's own."""
    return {k: v for k, v in table.io.properties.items() if k.startswith(_OF_STORES) and catalog.properties.get(k) != v}


_vendors: dict[tuple[str, ...], Vendor] = {}
_vendors_lock: Final = threading.Lock()


def vendor_of(properties: Mapping[str, str]) -> Vendor:
    """Of the table that `of_table` has named in the properties; the same one throughout the process."""
    table = properties[VENDED_FOR]
    key = (table, *(str(properties.get(k)) for k in _OF_CATALOG))
    with _vendors_lock:
        if key not in _vendors:
            _vendors[key] = Vendor(_without_vendor(properties), table)
        return _vendors[key]


def _without_vendor(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in properties.items() if k not in (PY_IO_IMPL, VENDED_FOR)}


class VendedFileIO(FileIO):
    """PyIceberg's own FileIO, made again each time the catalog has vended new credentials."""

    def __init__(self, properties: Mapping[str, Any], vendor: Vendor | None = None) -> None:
        """Args:
        properties: As `of_table` returns them, and any of the table's own.
        """
        super().__init__(dict(properties))
        self._vendor = vendor
        self._lock = threading.Lock()
        self._made: dict[str, tuple[Vended, FileIO]] = {}  # by scheme

    def new_input(self, location: str) -> InputFile:
        return self._current(location).new_input(location)

    def new_output(self, location: str) -> OutputFile:
        return self._current(location).new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        where = location if isinstance(location, str) else location.location
        self._current(where).delete(where)

    def _current(self, location: str) -> FileIO:
        if self._vendor is None:
            self._vendor = vendor_of(self.properties)
        vended, scheme = self._vendor.now(), location.partition(":")[0]
        with self._lock:
            made = self._made.get(scheme)
            if made is None or made[0] is not vended:
                made = vended, load_file_io({**_without_vendor(self.properties), **vended.config}, location)
                self._made[scheme] = made
            return made[1]

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which asks the catalog itself."""
        return {"properties": {k: v for k, v in self.properties.items() if isinstance(v, str)}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["properties"])  # type: ignore[misc]


class VendingCatalog(RestCatalog):
    """PyIceberg's REST catalog, whose tables stay readable after the credentials that they came with have expired."""

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        table = super()._response_to_table(identifier_tuple, table_response)
        if vended_with(self, table):
            named = {**table.io.properties, VENDED_FOR: ".".join(identifier_tuple)}
            table.io = VendedFileIO(named, Vendor.seeded(self, table))
        return table


def for_boto3(properties: Mapping[str, str]) -> tuple[dict[str, str], RefreshableCredentials | None]:
    """The properties for a client of S3, and credentials that it renews itself.

    Args:
        properties: As `of_table` returns them.
    Returns: None for credentials, if the catalog vends none; those of the properties count then.
    """
    vendor = vendor_of(properties)
    vended = vendor.now()
    if "s3.access-key-id" not in vended.config:
        return {**properties, **vended.config}, None

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

    # The vendor knows how long before the end to ask; boto3 need not be early as well.
    credentials = RefreshableCredentials.create_from_metadata(
        renewed(), renewed, "vended", advisory_timeout=0, mandatory_timeout=0
    )
    return {**properties, **vended.config}, credentials
