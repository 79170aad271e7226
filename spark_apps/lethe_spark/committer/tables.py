"""Open the tables of runs, through catalogs that stay open, and check them before a run changes anything. I/O."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from lethe.base.errors import InputError
from lethe.iceberg import catalogs

from lethe_spark.commit.table_checks import check_and_observe, is_settled
from lethe_spark.committer.fitness import NeedsSpark
from lethe_spark.jvm.standalone_jvm import JvmCatalog, SmallJvm
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run
from lethe_spark.run.foreign_errors import understood
from lethe_spark.run.redact import RedactingFormatter, secrets_of
from lethe_spark.sql import rest_guard


@dataclass
class OpenTables:
    """Opens tables by name. Safe to use from several threads."""

    jvm: SmallJvm
    formatter: RedactingFormatter
    _opened: dict[str, tuple[Mapping[str, str], JvmCatalog]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def learn_secrets(self) -> None:
        """Redact the current secrets of the configuration file from the log."""
        found = [secrets_of(own) for own in catalogs.every().values()]
        with self._lock:
            self.formatter.secrets = self.formatter.secrets.union(*found)

    def properties(self, name: str) -> dict[str, str]:
        """PyIceberg's current properties of a catalog.

        Raises: NeedsSpark, if the catalog is missing or cannot be opened here. A Job decides whether that is permanent.
        """
        try:
            found = catalogs.properties(name)
            if not catalogs.is_folder(found):
                catalogs.spark_properties(name, found)
        except InputError as e:
            raise NeedsSpark(e.message.rstrip(".")) from e
        if catalogs.is_folder(found):
            raise NeedsSpark(f"catalog {name} has type hadoop, which is served to Spark sessions only")
        return found

    def open(self, context: Run) -> IcebergTable:
        """The table of a run, if it needs no preparation.

        Raises: NeedsSpark; InputError, as `check_and_observe`; TransientError.
        """
        wanted = context.spec.table
        table = self._catalog(wanted.catalog, context.catalog_properties).load(wanted.name)
        if table is None:
            raise NeedsSpark(f"catalog {wanted.catalog} has no table {wanted.name} yet")
        if table.format_version < 2:
            raise NeedsSpark(f"{wanted.name} has Iceberg format version 1")
        if not is_settled(context, check_and_observe(context, table)):
            raise NeedsSpark(f"{wanted.name} is not claimed and prepared for Dataset {context.claim} yet")
        return table

    def _catalog(self, name: str, properties: Mapping[str, str]) -> JvmCatalog:
        # Under the lock, so that only one thread at a time waits for a catalog that does not answer.
        with self._lock:
            known = self._opened.get(name)
            if known is not None and known[0] == properties:
                return known[1]
            prefix = f"spark.sql.catalog.{name}."
            conf = rest_guard.spark_properties(name, properties)
            try:
                catalogs.require_history(name, properties)
            except Exception as e:
                raise understood(e) from e
            own = {k.removeprefix(prefix): v for k, v in conf.items() if k.startswith(prefix)}
            # The catalog with the old properties is not closed: a run of another thread may be using it.
            opened = self.jvm.open_catalog(name, own)
            self._opened[name] = (properties, opened)
            return opened
