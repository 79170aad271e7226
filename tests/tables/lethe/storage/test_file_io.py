"""Tables of one catalog share the clients that read their files."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lethe.iceberg import catalogs
from lethe.storage import file_io
from lethe.storage.file_io import SharedFileIO
from pyarrow.fs import FileSystem, LocalFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema

OWN = {"s3.endpoint": "http://127.0.0.1:9", "s3.region": "us-east-1"}
PLACE = ("s3", "lake")


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The schemes of clients, as they are created. The process has none at the beginning."""
    schemes: list[str] = []
    real = PyArrowFileIO._initialize_fs

    def create(io: PyArrowFileIO, scheme: str, netloc: str | None = None) -> FileSystem:
        schemes.append(scheme)
        if "fail" in schemes:
            raise OSError("no client")
        return real(io, scheme, netloc) if scheme == "file" else LocalFileSystem()

    monkeypatch.setattr(file_io, "_clients", file_io._Clients())
    monkeypatch.setattr(PyArrowFileIO, "_initialize_fs", create)
    return schemes


def client(properties: dict[str, str], scheme: str = "s3", netloc: str | None = "lake") -> FileSystem:
    return SharedFileIO(properties).fs_by_scheme(scheme, netloc)


def test_another_bucket_or_access_is_another_client(created: list[str]) -> None:
    found = client(OWN)

    assert client({**OWN, "s3.region": "eu-west-1"}) is not found
    assert client(OWN, netloc="sea") is not found
    assert client(OWN) is found
    assert created == ["s3"] * 3


def test_threads_that_load_tables_at_once_get_the_same_client(created: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: client(OWN), range(64)))

    assert len(set(map(id, found))) == 1
    assert created == ["s3"]


def test_a_client_that_cannot_be_created_is_tried_again(created: list[str]) -> None:
    with pytest.raises(OSError, match="no client"):
        client(OWN, "fail")
    created.clear()

    client(OWN, "s3")
    client(OWN, "s3")

    assert created == ["s3"]


def test_the_number_of_kept_clients_is_limited(created: list[str]) -> None:
    for n in range(3 * file_io._KEPT_AT_MOST):
        client({**OWN, "s3.region": f"r{n}"})

    assert len(file_io._clients._kept) == file_io._KEPT_AT_MOST
    assert len(created) == 3 * file_io._KEPT_AT_MOST


def test_all_tables_of_an_opened_sql_catalog_are_loaded_and_read_with_one_client(
    tmp_path: Path, created: list[str]
) -> None:
    config = tmp_path / ".pyiceberg.yaml"
    lines = (
        "type: sql",
        f"uri: sqlite:///{tmp_path}/c.db",
        f"warehouse: file://{tmp_path}/wh",
        'init_catalog_tables: "true"',
    )
    config.write_text("catalog:\n  main:\n" + "".join(f"    {line}\n" for line in lines))
    catalog = catalogs.load("main", config)
    catalog.create_namespace("ns")
    for name in "ab":
        catalog.create_table(
            f"ns.{name}", Schema(), properties={"owner": name, "s3.endpoint": f"http://{name}.example"}
        )

    for name in "ab":
        table = catalog.load_table(f"ns.{name}")
        assert table.io.new_input(table.metadata_location).exists()

    assert created == ["file"]


@pytest.mark.parametrize(
    "properties",
    [
        OWN,
        {**OWN, "s3.access-key-id": "key", "s3.secret-access-key": "secret", "s3.session-token": "token"},
        {**OWN, "s3.anonymous": "true", "s3.connect-timeout": "3", "s3.request-timeout": "7"},
        {**OWN, "s3.proxy-uri": "http://proxy:8080", "s3.force-virtual-addressing": "true"},
    ],
)
def test_a_client_for_s3_differs_from_pyicebergs_only_in_how_it_opens_files(properties: dict[str, str]) -> None:
    ours, theirs = (options_of(io(properties).fs_by_scheme(*PLACE)) for io in (SharedFileIO, PyArrowFileIO))

    assert ours == {**theirs, "allow_delayed_open": True}


def options_of(client: FileSystem) -> dict[str, Any]:
    (options,) = client.__reduce__()[1]
    return dict(options)
