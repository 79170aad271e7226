"""A destination of dlt: each load becomes one batch in each of its tables, in the buffers of Datasets. I/O: HTTP, and files.

The load id is the batch's id and its reference, so one command takes a load back from all tables.
"""

import dataclasses
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from dlt.common.configuration import configspec
from dlt.common.configuration.container import Container
from dlt.common.destination import Destination, DestinationCapabilitiesContext
from dlt.common.destination.client import DestinationClientConfiguration, JobClientBase, LoadJob, PreparedTableSchema
from dlt.common.destination.exceptions import DestinationTerminalException, DestinationTransientException
from dlt.common.storages.load_package import LoadPackageStateInjectableContext, PackageStorage, ParsedLoadJobFileName
from dlt.common.typing import TSecretStrValue
from dlt.destinations.job_impl import FinalizedLoadJob

from lethe.base.errors import InputError, TransientError
from lethe.client import GatewayClient


@configspec
class LetheConfiguration(DestinationClientConfiguration):
    """Where the gateway is, and what becomes of tables. All can be in dlt's configuration, below `destination.lethe`."""

    destination_type: Final[str] = dataclasses.field(default="lethe", init=False, repr=False, compare=False)
    url: str = ""
    """Of the gateway."""
    token: TSecretStrValue = None  # dlt asks for it
    """A token of the cluster."""
    namespace: str = "default"
    """Of the Datasets."""
    datasets: dict[str, str] | None = None
    """Datasets by table. Other tables have a Dataset of their name, with `-` instead of `_`."""
    keep_dlt_columns: bool = False
    """Whether `_dlt_id`, `_dlt_load_id` and the like stay in the rows."""
    wait_seconds: float = 600
    """How long a load waits until its batches are promoted. 0: it does not wait."""


class LetheClient(JobClientBase):
    """Delivers the files of a load when all of them are there, so that a batch is never a part of a load."""

    config: LetheConfiguration

    def initialize_storage(self, truncate_tables: Iterable[str] | None = None) -> None:
        """Refuse to replace rows.

        Raises:
            DestinationTerminalException: A resource has the write disposition `replace`.
        """
        if tables := sorted(truncate_tables or ()):
            raise _refused(tables[0], "replace")

    def is_storage_initialized(self) -> bool:
        """True: Datasets are created with kubectl."""
        return True

    def drop_storage(self) -> None:
        """Do nothing: a pipeline does not drop tables of Datasets."""

    def create_load_job(
        self,
        table: PreparedTableSchema,
        file_path: str,
        load_id: str,  # noqa: ARG002
        restore: bool = False,  # noqa: ARG002
    ) -> LoadJob:
        """Leave the file in its load, until the load is complete.

        Raises:
            DestinationTerminalException: A resource has another write disposition than `append`.
        """
        if not self._is_dlts_own(table["name"]) and table["write_disposition"] not in ("append", "skip"):
            raise _refused(table["name"], table["write_disposition"])
        return FinalizedLoadJob(file_path)

    def complete_load(self, load_id: str) -> None:
        """Deliver a batch for each table, and wait for them. A repetition after a crash finds what was delivered before.

        Raises:
            DestinationTerminalException: A batch was refused, or the gateway says what to change.
            DestinationTransientException: The gateway is away: run the pipeline again.
        """
        storage = Container()[LoadPackageStateInjectableContext].storage
        completed = storage.get_job_state_folder_path(load_id, PackageStorage.COMPLETED_JOBS_FOLDER)
        files: dict[str, list[Path]] = {}
        for path in Path(storage.storage.make_full_path(completed)).iterdir():
            table = ParsedLoadJobFileName.parse(path.name).table_name
            if not self._is_dlts_own(table):
                files.setdefault(table, []).append(path)
        config = self.config
        try:
            with GatewayClient(config.url, config.token, config.namespace) as gateway:
                for table, paths in sorted(files.items()):
                    self._deliver(gateway, self._dataset(table), load_id, paths)
                for table in sorted(files) if config.wait_seconds else ():
                    gateway.wait_for_batch(self._dataset(table), load_id, config.wait_seconds)
        except TransientError as e:
            raise DestinationTransientException(str(e)) from e
        except InputError as e:
            raise DestinationTerminalException(str(e)) from e

    def _deliver(self, gateway: GatewayClient, dataset: str, load_id: str, paths: Iterable[Path]) -> None:
        with tempfile.TemporaryDirectory(prefix="lethe-load-") as folder:
            for path in paths:
                with pq.ParquetFile(path) as file:
                    schema = pa.schema([f for f in file.schema_arrow if self._keeps(f.name)])
                    with pq.ParquetWriter(Path(folder) / path.name, schema) as writer:
                        for rows in file.iter_batches(columns=schema.names):
                            writer.write_batch(rows)
            gateway.put(dataset, load_id, folder, reference=load_id)

    def _keeps(self, column: str) -> bool:
        return self.config.keep_dlt_columns or not self._is_dlts_own(column)

    def _is_dlts_own(self, name: str) -> bool:
        return name.startswith(self.schema._dlt_tables_prefix)

    def _dataset(self, table: str) -> str:
        return (self.config.datasets or {}).get(table) or table.replace("_", "-")

    def __enter__(self) -> "LetheClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class lethe(Destination[LetheConfiguration, LetheClient]):  # noqa: N801 - as dlt's own
    """The destination: `dlt.pipeline("shop", destination=lethe(url="https://lethe.example.org"))`."""

    spec = LetheConfiguration

    def __init__(self, url: str | None = None, token: str | None = None, **settings: Any) -> None:
        """Create `lethe`. What is None, and the other settings of LetheConfiguration, come from dlt's configuration.

        Args:
            url: Of the gateway.
            token: A token of the cluster.
            settings: Other fields of LetheConfiguration.
        """
        super().__init__(**{k: v for k, v in {"url": url, "token": token}.items() if v is not None}, **settings)

    @property
    def client_class(self) -> type[LetheClient]:
        """The client."""
        return LetheClient

    def _raw_capabilities(self) -> DestinationCapabilitiesContext:
        capabilities = DestinationCapabilitiesContext.generic_capabilities("parquet")
        capabilities.supported_loader_file_formats = ["parquet"]
        capabilities.naming_convention = "snake_case"
        capabilities.max_table_nesting = 0
        capabilities.supports_ddl_transactions = False
        return capabilities


lethe.register()


def _refused(table: str, disposition: str) -> DestinationTerminalException:
    return DestinationTerminalException(
        f"table {table} has the write disposition {disposition}; a load is a batch, so it can only be append. To correct rows, "
        "revert the load that brought them, or create a Replay."
    )
