"""The catalog that Spark is served, asked by another client of the same protocol. Iceberg's Java code, which makes the
metadata in a session, is PyIceberg's here.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from lethe.base.errors import ConflictError, InputError
from lethe.hadoop import FolderCatalog
from lethe_spark.sql.rest_servers import TOKEN, FolderServer, FolderTables
from pyiceberg.catalog.rest import CreateTableRequest, RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV1, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata

NAME = "air.flights"
SCHEMA = pa.schema([("v", pa.int64())])


class OfPyIceberg:
    """`JvmMetadata` without a JVM."""

    def created(self, location: str, request: str) -> str:
        given = {"location": None, "partition-spec": None, "write-order": None} | json.loads(request)
        wanted = CreateTableRequest.model_validate(given)
        made = new_table_metadata(
            wanted.table_schema,
            wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            wanted.write_order or UNSORTED_SORT_ORDER,
            location,
            wanted.properties,
        )
        return made.model_dump_json(by_alias=True)

    def updated(self, location: str, metadata: str, request: str) -> str | None:
        wanted, base = CommitTableRequest.model_validate_json(request), TableMetadataUtil.parse_raw(metadata)
        try:
            for requirement in wanted.requirements:
                requirement.validate(base)
        except CommitFailedException as e:
            raise ConflictError("CommitFailed", str(e)) from e
        made = update_table_metadata(base, wanted.updates, metadata_location=location)
        return None if made == base else made.model_dump_json(by_alias=True)

    def completed(self, location: str, request: str) -> str:
        nothing = TableMetadataV1.model_construct(location=location, last_column_id=-1, schema=Schema())
        updates = CommitTableRequest.model_validate_json(request).updates
        return update_table_metadata(nothing, updates).model_dump_json(by_alias=True)


@pytest.fixture
def catalog(tmp_path: Path) -> FolderCatalog:
    return FolderCatalog("lake", type="hadoop", warehouse=f"file://{tmp_path}/warehouse")


@pytest.fixture(scope="module")
def running() -> Iterator[FolderServer]:
    nothing_yet = FolderCatalog("lake", warehouse="file:///nowhere")
    made = FolderServer(FolderTables(nothing_yet, OfPyIceberg()))
    yield made
    made.close()


@pytest.fixture
def server(running: FolderServer, catalog: FolderCatalog) -> FolderServer:
    running.tables = FolderTables(catalog, OfPyIceberg())
    return running


def client(server: FolderServer, token: str | None = None) -> RestCatalog:
    return RestCatalog("lake", uri=server.uri, **{f"header.{TOKEN}": token or server.token})


def rows(*values: int) -> pa.Table:
    return pa.table({"v": values}, SCHEMA)


def metadata_files(catalog: FolderCatalog) -> set[str]:
    folder = Path(catalog.location(("air", "flights")).removeprefix("file://")) / "metadata"
    return {p.name for p in folder.glob("v*")}


def test_a_table_is_made_written_and_read_by_its_folder_alone(server: FolderServer, catalog: FolderCatalog) -> None:
    made = client(server).create_table(NAME, SCHEMA, properties={"format-version": "2"})
    made.append(rows(1, 2))
    made.append(rows(3))

    found = catalog.load_table(NAME)

    assert sorted(found.scan().to_arrow()["v"].to_pylist()) == [1, 2, 3]
    assert (
        made.metadata_location
        == found.metadata_location
        == f"{catalog.location(('air', 'flights'))}/metadata/v3.metadata.json"
    )
    assert metadata_files(catalog) == {"v1.metadata.json", "v2.metadata.json", "v3.metadata.json", "version-hint.text"}
    assert [e.metadata_file.rpartition("/")[2] for e in found.metadata.metadata_log] == [
        "v1.metadata.json",
        "v2.metadata.json",
    ]


def test_a_missing_or_existing_table_gets_the_matching_error(server: FolderServer) -> None:
    with pytest.raises(NoSuchTableError, match=r"Table does not exist: air\.flights"):
        client(server).load_table(NAME)
    client(server).create_table(NAME, SCHEMA)

    with pytest.raises(TableAlreadyExistsError, match=r"Table already exists: air\.flights"):
        client(server).create_table(NAME, SCHEMA)


def test_a_stale_handle_gets_a_conflict(server: FolderServer) -> None:
    made = client(server).create_table(NAME, SCHEMA, properties={"commit.retry.num-retries": "0"})
    stale = client(server).load_table(NAME)
    made.append(rows(1))

    with pytest.raises(CommitFailedException, match="main"):
        stale.append(rows(2))

    assert made.refresh().scan().to_arrow()["v"].to_pylist() == [1]


def test_changes_that_do_not_meet_both_land_on_a_stale_handle_too(server: FolderServer, catalog: FolderCatalog) -> None:
    made = client(server).create_table(NAME, SCHEMA)
    stale = client(server).load_table(NAME)
    made.append(rows(1))

    with stale.transaction() as change:
        change.set_properties(owner="air")

    found = catalog.load_table(NAME)
    assert (found.properties["owner"], found.scan().to_arrow().num_rows) == ("air", 1)


def test_a_change_that_changes_nothing_makes_no_version(server: FolderServer, catalog: FolderCatalog) -> None:
    made = client(server).create_table(NAME, SCHEMA, properties={"owner": "air"})
    with made.transaction() as change:
        change.set_properties(owner="air")
    before = metadata_files(catalog)

    with made.transaction() as change:
        change.set_properties()

    assert metadata_files(catalog) == before


def test_racing_appends_through_servers_of_their_own_are_all_there_once(catalog: FolderCatalog, tmp_path: Path) -> None:
    """Two processes have a server each: nothing but the folder stands between them. The hint is wrong all the time."""
    servers = [FolderServer(FolderTables(catalog, OfPyIceberg())) for _ in range(2)]
    properties = {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "3",
        "commit.retry.num-retries": "0",
    }
    client(servers[0]).create_table(NAME, SCHEMA, properties=properties)
    hint = tmp_path / "warehouse" / "air" / "flights" / "metadata" / "version-hint.text"

    def append(server: FolderServer, first: int) -> None:
        mine = client(server)
        for value in range(first, first + 5):
            while True:
                table = mine.load_table(NAME)
                if value in table.scan().to_arrow()["v"].to_pylist():
                    break
                hint.write_text("1" if value % 2 else "999")
                try:
                    table.append(rows(value))
                except (CommitFailedException, CommitStateUnknownException):
                    continue

    writers = [threading.Thread(target=append, args=(s, 10 * n)) for n, s in enumerate(servers)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(60)
    for s in servers:
        s.close()

    found = catalog.load_table(NAME)
    assert sorted(found.scan().to_arrow()["v"].to_pylist()) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert found.metadata_location.endswith("/v11.metadata.json")
    assert len(found.metadata.snapshots) == 10
    assert metadata_files(catalog) == {f"v{n}.metadata.json" for n in (8, 9, 10, 11)} | {"version-hint.text"}


def test_a_version_that_cannot_be_read_is_no_reason_to_go_on_from_the_one_before(
    server: FolderServer, tmp_path: Path
) -> None:
    made = client(server).create_table(NAME, SCHEMA)
    (tmp_path / "warehouse" / "air" / "flights" / "metadata" / "v2.metadata.json").touch()

    with pytest.raises(BadRequestError, match="MetadataUnreadable"):
        made.append(rows(1))


@pytest.mark.parametrize(
    "change", [{"location": "file:///elsewhere"}, {"properties": {"write.metadata.path": "file:///elsewhere"}}]
)
def test_a_table_found_by_its_folder_cannot_be_elsewhere(server: FolderServer, change: dict[str, object]) -> None:
    with pytest.raises(BadRequestError, match="NotSupported"):
        client(server).create_table(NAME, SCHEMA, **change)  # type: ignore[arg-type]

    made = client(server).create_table(NAME, SCHEMA)
    with pytest.raises(BadRequestError, match="can be moved"), made.transaction() as moving:
        moving.set_properties(**{"write.metadata.path": "file:///elsewhere"})


def test_a_staged_table_exists_from_its_first_commit_on_with_its_rows(
    server: FolderServer, catalog: FolderCatalog
) -> None:
    staged = client(server).create_table_transaction(NAME, SCHEMA, properties={"format-version": "2"})
    staged.append(rows(1, 2))
    assert not catalog.table_exists(NAME)

    staged.commit_transaction()

    assert sorted(catalog.load_table(NAME).scan().to_arrow()["v"].to_pylist()) == [1, 2]
    assert metadata_files(catalog) == {"v1.metadata.json", "version-hint.text"}


def test_a_staged_table_does_not_replace_one_that_was_created_meanwhile(
    server: FolderServer, catalog: FolderCatalog
) -> None:
    staged = client(server).create_table_transaction(NAME, SCHEMA)
    client(server).create_table(NAME, SCHEMA).append(rows(1))

    with pytest.raises(CommitFailedException, match="table already exists"):
        staged.commit_transaction()

    assert catalog.load_table(NAME).scan().to_arrow()["v"].to_pylist() == [1]
    with pytest.raises(TableAlreadyExistsError):
        client(server).create_table_transaction(NAME, SCHEMA)


@pytest.mark.parametrize("name", [("..", "flights"), ("air", ".."), ("air", "a/b"), ("", "flights")])
def test_a_name_that_leads_out_of_the_warehouse_is_refused(catalog: FolderCatalog, name: tuple[str, str]) -> None:
    with pytest.raises(InputError, match="must be the name of a folder"):
        catalog.load_table(name)


def test_a_name_is_taken_to_the_letter(server: FolderServer, catalog: FolderCatalog) -> None:
    """Names travel percent-encoded, with a plus for a space."""
    client(server).create_table(("air", "a b+c%2F"), SCHEMA)

    assert catalog.table_exists(("air", "a b+c%2F"))


def test_only_this_process_is_served(server: FolderServer) -> None:
    with pytest.raises(UnauthorizedError):
        client(server, token="guessed").load_table(NAME)
