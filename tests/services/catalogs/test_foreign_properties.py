"""Tables and REST catalogs whose authors try to configure the clients of the operator and the gateway: nothing connects to where
they point, nothing they name is loaded, and no log shows their values. The files are in a real S3 server."""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from lethe.base import names as lethe_names
from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe_gateway.tables.looking import bring_up_to_date, look
from lethe_gateway.tables.records import TableTarget
from lethe_operator.dataset.tables import TableReader
from lethe_operator.resources.observed import TableView
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from tests.support.builders import a_batch
from tests.support.foreign_properties import ENDS, canaries, catalog_of_a_tenant, names, poison
from tests.support.resources import a_dataset
from tests.support.servers.canary import Canary, listening
from tests.support.servers.s3 import S3
from tests.support.tables import commit, new_table, rows
from tests.support.tracked import BATCHES, NAME, update

# None of these passes.
HARMFUL = ("refused", "configuration")
GCS = {"gcs.service.host": "https://gcs.example"}


@dataclass(frozen=True)
class Site:
    """The catalog `lite` with a table and its table of batches in S3, and the credentials of all that read them."""

    home: Path
    own: Mapping[str, str]

    @property
    def catalog(self) -> Catalog:
        return catalogs.load("lite")

    def tables(self) -> dict[str, Table]:
        return {name: self.catalog.load_table(name) for name in (NAME, BATCHES)}

    def configure(self, **more: Mapping[str, str]) -> None:
        (self.home / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"lite": dict(self.own), **more}}))


@pytest.fixture
def canary() -> Iterator[Canary]:
    with listening() as found:
        yield found


@pytest.fixture
def site(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    bucket = s3.bucket(f"lake-{tmp_path.name[-20:].replace('_', '-').lower()}")
    of_sql = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"s3://{bucket}/wh"}
    made = Site(tmp_path, {**of_sql, **s3.properties(), "init_catalog_tables": "true"})
    made.configure()
    made.catalog.create_namespace("air")
    table = new_table(made.catalog, NAME, **{lethe_names.CLAIM: "default/flights"})
    table.append(rows("A", "B"))
    commit(table, a_batch("A"), a_batch("B"))
    update(made.catalog)
    return made


def read_as_operator_and_gateway(site: Site, catalog: str) -> None:
    dataset = a_dataset("flights", table={"catalog": catalog, "name": NAME})
    view = TableReader().view(dataset)
    assert isinstance(view, TableView), view
    assert set(view.ledger.batches) == {"A", "B"}
    seen = look(TableTarget(catalog, NAME, "default/flights", "batch_id"))
    bring_up_to_date(None, site.home / f"{catalog}.db", seen, lambda _: None)


def nothing_of(values: set[str], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    logged = "\n".join([*(r.getMessage() + str(r.exc_text or "") for r in caplog.records), *capfd.readouterr()])
    for value in values:
        assert value not in logged


def test_a_table_configures_neither_operator_nor_gateway(
    site: Site, s3: S3, canary: Canary, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "pyiceberg")
    caplog.set_level(logging.DEBUG, "lethe")
    for table in site.tables().values():
        poison(table, canaries(canary, *HARMFUL, "from-catalog"), s3.properties())

    read_as_operator_and_gateway(site, "lite")

    assert canary.heard == []
    nothing_of({canary.uri, ENDS}, caplog, capfd)


@pytest.mark.parametrize("kind", ["sql", "glue"])
def test_no_property_of_a_table_is_one_of_its_file_io(site: Site, s3: S3, kind: str) -> None:
    """Whatever the type of the catalog. The service of glue only knows where the metadata is."""
    table = site.tables()[NAME]
    own = dict(catalogs.load("lite").properties)
    metadata = {**json.loads(table.metadata.model_dump_json())}
    if kind == "glue":
        own = {"type": "glue", "glue.region": "eu-west-1", **s3.properties()}
    site.configure(other=own)
    catalog = catalogs.load("other")
    for name in names(*HARMFUL, "from-catalog", "of-table"):
        metadata["properties"] = {name: ENDS}

        io = catalog._load_file_io(metadata["properties"], table.metadata_location)

        assert io.properties == catalog.properties, name
    assert own["s3.access-key-id"] == catalog.properties["s3.access-key-id"]


def test_a_catalog_of_a_tenant_configures_neither_operator_nor_gateway(
    site: Site, s3: S3, canary: Canary, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "pyiceberg")
    caplog.set_level(logging.DEBUG, "lethe")
    with catalog_of_a_tenant(site.tables(), canaries(canary, *HARMFUL)) as uri:
        own = {"type": "rest", "uri": uri, "token": "of-the-operator", **GCS, **s3.properties()}
        site.configure(tenant=own)

        read_as_operator_and_gateway(site, "tenant")

        catalog = catalogs.load("tenant")
        assert own.items() <= catalog.properties.items()
        assert own.keys() | {"s3.connect-timeout", "s3.request-timeout"} == catalog.properties.keys()
    assert canary.heard == []
    nothing_of({canary.uri, ENDS}, caplog, capfd)


def test_each_answer_of_a_catalog_alone_changes_nothing(site: Site, s3: S3, canary: Canary) -> None:
    answers: dict[str, str] = {}
    with catalog_of_a_tenant(site.tables(), answers) as uri:
        site.configure(tenant={"type": "rest", "uri": uri, **GCS, **s3.properties()})
        plain = catalogs.load("tenant")
        io = plain.load_table(NAME).io.properties
        for name, value in canaries(canary, *HARMFUL).items():
            answers.clear()
            answers[name] = value

            catalog = catalogs.load("tenant")

            assert isinstance(catalog, RestCatalog)
            assert (catalog.properties, catalog.uri) == (plain.properties, uri), name
            found = catalog.load_table(NAME)
            assert {k: v for k, v in found.io.properties.items() if k in io and isinstance(v, str)} == {
                k: v for k, v in io.items() if isinstance(v, str)
            }, name
            assert found.io.properties.keys() == io.keys(), name
            assert found.config == {}, name
    assert canary.heard == []


def test_vended_credentials_go_to_the_host_of_the_configuration(site: Site, s3: S3, canary: Canary) -> None:
    vended = {**s3.properties(), "s3.endpoint": canary.uri, "s3.session-token-expires-at-ms": "32503680000000"}
    with catalog_of_a_tenant(site.tables(), vended) as uri:
        wrong = {"s3.access-key-id": "of-the-operator", "s3.secret-access-key": "s", "s3.session-token": "t"}
        site.configure(tenant={"type": "rest", "uri": uri, "s3.endpoint": s3.endpoint, **wrong})

        read_as_operator_and_gateway(site, "tenant")

    assert canary.heard == []


def test_an_endpoint_that_no_configuration_names_is_refused_by_name(site: Site, s3: S3, canary: Canary) -> None:
    with catalog_of_a_tenant(site.tables(), {**s3.properties(), "s3.endpoint": canary.uri}) as uri:
        site.configure(tenant={"type": "rest", "uri": uri})

        with pytest.raises(InputError, match=r"UnsafeProperty: .*s3\.endpoint.*catalogs") as e:
            catalogs.load("tenant").load_table(NAME)

    assert canary.uri not in e.value.message
    assert canary.heard == []


def test_pythons_writers_load_no_class_of_a_table(site: Site, s3: S3) -> None:
    for table in site.tables().values():
        poison(table, {"write.py-location-provider.impl": ENDS}, s3.properties())

    with pytest.raises(
        InputError, match=r"UnsafeProperty: air\.flights_batches: the table property write\.py-location-provider\.impl"
    ):
        update(site.catalog)
