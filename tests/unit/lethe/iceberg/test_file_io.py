"""Tables of one catalog share the access to their files, unless their own properties change it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lethe.iceberg import catalogs, file_io
from lethe.iceberg.file_io import SharedFileIO
from pyiceberg.schema import Schema

OWN = {"s3.endpoint": "http://127.0.0.1:9"}
METADATA = "s3://lake/t/metadata/1.metadata.json"


def test_tables_share_a_file_io_whatever_else_their_properties_say() -> None:
    load = SharedFileIO(OWN)

    found = load({"lethe.dataset": "ns/a", "write.format.default": "parquet"}, METADATA)

    assert load({"lethe.dataset": "ns/b"}, "s3://sea/u/metadata/2.metadata.json") is found
    assert found.properties == OWN


def test_a_table_that_configures_its_files_has_its_own_file_io() -> None:
    load = SharedFileIO(OWN)

    own = load({"s3.region": "eu-west-1"}, METADATA)

    assert own is not load({}, METADATA)
    assert own.properties == {**OWN, "s3.region": "eu-west-1"}


def test_threads_that_load_tables_at_once_get_the_same_file_io() -> None:
    load = SharedFileIO(OWN)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: load({}, METADATA), range(64)))

    assert len(set(map(id, found))) == 1


def test_the_number_of_kept_file_ios_is_limited() -> None:
    load = SharedFileIO(OWN)
    for n in range(3 * file_io.KEPT_AT_MOST):
        load({"s3.region": f"r{n}"}, METADATA)

    assert len(load._kept) == file_io.KEPT_AT_MOST


def test_tables_of_an_opened_catalog_share_their_file_io(tmp_path: Path) -> None:
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
        catalog.create_table(f"ns.{name}", Schema())

    assert catalog.load_table("ns.a").io is catalog.load_table("ns.b").io
