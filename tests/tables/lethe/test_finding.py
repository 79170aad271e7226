"""`lethe.table` finds the catalog of a table, and an error names each place that was looked at."""

import sys
from collections.abc import Callable
from pathlib import Path

import lethe
import pytest
import yaml
from lethe.base.errors import InputError, TransientError
from lethe.iceberg.catalogs import CONFIG_FILE
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from tests.support.places import Places
from tests.support.resources import a_dataset_body
from tests.support.tables import catalog_in, new_table, revert, rows, values


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    return Places.none(tmp_path / "home", monkeypatch)


def filled(catalog: Catalog, *batches: str, name: str = "air.flights") -> None:
    table = new_table(catalog, name)
    table.append(rows(*batches))


def also(name: str, folder: Path, **properties: str) -> dict[str, str]:
    """Another catalog in the configuration in a folder. Its properties."""
    own = {"type": "sql", "uri": f"sqlite:///{folder}/{name}.db", "warehouse": f"file://{folder}/{name}", **properties}
    file = folder / CONFIG_FILE
    document = yaml.safe_load(file.read_text())
    document["catalog"][name] = own
    file.write_text(yaml.safe_dump(document))
    return own


def test_a_given_catalog_counts_before_all_places(places: Places, tmp_path: Path) -> None:
    filled(places.configured(), "A")
    given = catalog_in(tmp_path / "given")
    filled(given, "A", "B")

    assert lethe.table("air.flights", given).scan().count() == 2
    assert lethe.table("air.flights", "lite").scan().count() == 1


@pytest.mark.parametrize("name", ["air.flights", "lite.air.flights"])
@pytest.mark.parametrize("find", [lethe.table, lethe.scan, lethe.batches])
def test_a_table_is_loaded_once(
    places: Places, monkeypatch: pytest.MonkeyPatch, name: str, find: Callable[[str], object]
) -> None:
    filled(places.configured(), "A")
    loads: list[object] = []
    load = SqlCatalog.load_table
    monkeypatch.setattr(SqlCatalog, "load_table", lambda self, name: [loads.append(name), load(self, name)][1])

    find(name)

    assert loads.count("air.flights") == 1


@pytest.mark.parametrize("name", ["air.flights", "lite.air.flights"])
def test_pyicebergs_configuration_counts_before_lethe_local(places: Places, name: str) -> None:
    filled(places.configured(), "A")
    with places.lethe_local() as local:
        filled(local, "A", "B")

        assert lethe.table(name).scan().count() == 1
        assert lethe.scan(name).count() == 1


@pytest.mark.usefixtures("places")
def test_a_variable_is_part_of_pyicebergs_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but variables: there is no file."""
    home = tmp_path / "by_variables"
    filled(catalog_in(home), "A")
    (home / CONFIG_FILE).unlink()
    for key, value in {"TYPE": "sql", "URI": f"sqlite:///{home}/c.db", "WAREHOUSE": f"file://{home}/wh"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LITE__{key}", value)

    assert lethe.table("air.flights").name == "lite.air.flights"
    assert lethe.scan("lite.air.flights").count() == 1


def test_a_variable_changes_one_property_of_the_file(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(places.configured(), "A")
    monkeypatch.setenv("PYICEBERG_CATALOG__LITE__URI", f"sqlite:///{places.home}/away/none.db")

    with pytest.raises(TransientError, match="the catalog lite does not answer") as raised:
        lethe.table("lite.air.flights")
    assert raised.value.reason == "CatalogUnavailable"


@pytest.mark.parametrize("name", ["air.flights", "lite.air.flights"])
def test_a_running_lethe_local_needs_no_configuration(places: Places, name: str) -> None:
    with places.lethe_local() as local:
        filled(local, "A", "B")
        revert(local.load_table("air.flights"), "A")

        assert values(lethe.table(name).scan()) == [1]


def test_lethe_local_counts_only_while_it_runs(places: Places) -> None:
    with places.lethe_local() as local:
        filled(local, "A")

    with pytest.raises(InputError, match="it does not run"):
        lethe.table("air.flights")


def test_pyicebergs_default_catalog_is_asked_first(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = places.configured()
    filled(mine, "A")
    second = load_catalog("second", **also("second", places.home / "mine"))
    second.create_namespace("air")
    filled(second, "A", "B")

    with pytest.raises(InputError, match=r"write lite\.air\.flights or second\.air\.flights") as raised:
        lethe.table("air.flights")
    assert raised.value.reason == "AmbiguousTable"
    monkeypatch.setenv("PYICEBERG_DEFAULT_CATALOG", "second")
    assert lethe.table("air.flights").name == "second.air.flights"


def test_a_catalog_that_does_not_answer_is_named_and_hides_no_other(places: Places) -> None:
    mine = places.configured()
    filled(mine, "A")
    also("away", places.home / "mine", uri=f"sqlite:///{places.home}/away/none.db")

    assert lethe.table("air.flights").name == "lite.air.flights"
    with pytest.raises(InputError, match="Not all catalogs could be asked: away: CatalogUnavailable"):
        lethe.table("air.nope")


@pytest.mark.parametrize(("name", "reason"), [("air.nope", "TableNotFound"), ("nope.air.flights", "UnknownCatalog")])
def test_an_error_names_all_places_that_were_looked_at(places: Places, name: str, reason: str) -> None:
    places.configured()
    places.cluster(a_dataset_body("nope", table={"catalog": "main", "name": "air.nope"}))
    with places.lethe_local(), pytest.raises(InputError) as raised:
        lethe.table(name)

    assert raised.value.reason == reason
    for place in (
        f"PyIceberg's configuration ({places.home}/mine/.pyiceberg.yaml",
        f"`lethe local` in {places.home}/.lethe: catalogs lite",
        "Datasets of context tests, namespace air: ",
        "air/nope has the table main.air.nope" if reason == "TableNotFound" else "none has this table",
    ):
        assert place in raised.value.message


def test_the_name_of_a_dataset_is_that_of_its_table(places: Places) -> None:
    filled(places.configured(), "A")
    places.cluster(a_dataset_body("delays", table={"catalog": "lite", "name": "air.flights"}))

    assert lethe.table("delays").name == lethe.table("dataset/delays").name == "lite.air.flights"
    assert lethe.scan("delays").count() == 1


def test_the_catalog_of_a_cluster_has_to_be_configured_here(places: Places) -> None:
    places.configured()
    places.cluster(a_dataset_body("delays", table={"catalog": "main", "name": "air.flights"}))

    with pytest.raises(
        InputError, match=r"Add the catalog main with your credentials to .*/mine/\.pyiceberg\.yaml"
    ) as raised:
        lethe.table("delays")
    assert raised.value.reason == "UnknownCatalog"
    assert "Dataset air/delays of context tests has the table air.flights of the catalog main" in raised.value.message


def test_a_dataset_that_does_not_exist_is_an_error_of_the_cluster(places: Places) -> None:
    with pytest.raises(InputError) as raised:
        lethe.table("delays")
    assert raised.value.reason == "NoCluster"
    places.cluster(a_dataset_body("delays"))
    with pytest.raises(InputError, match="Do you mean delays") as raised:
        lethe.table("delay")
    assert raised.value.reason == "UnknownName"


def test_a_configuration_may_be_any_yaml(places: Places) -> None:
    """PyIceberg refuses maps in braces. Lethe has always read them."""
    filled(places.configured(), "A")
    file = places.home / "mine" / CONFIG_FILE
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()), default_flow_style=True))

    assert lethe.table("air.flights").name == "lite.air.flights"
    file.write_text("catalog: {")
    with pytest.raises(InputError, match="configuration cannot be read") as raised:
        lethe.table("air.flights")
    assert raised.value.reason == "CatalogUnusable"


def test_what_reading_datasets_needs_is_named(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(places.configured(), "A")
    monkeypatch.setitem(sys.modules, "lethe_kubectl.programs", None)

    with pytest.raises(InputError, match=r"pip install 'lethe-lake\[kubectl\]'") as raised:
        lethe.table("delays")
    assert raised.value.reason == "NotInstalled"
    assert lethe.table("air.flights").scan().count() == 1
    with pytest.raises(InputError, match=r"Datasets \(not asked: lethe_kubectl\.programs is not installed\)"):
        lethe.table("air.nope")


def test_each_wrong_name_is_an_error_of_lethe(places: Places) -> None:
    filled(places.configured(), "A")

    for name, reason in {
        "lite.air.nope": "TableNotFound",
        "lite.nope.flights": "TableNotFound",
        "lite..flights": "InvalidRead",
        "air.": "InvalidRead",
    }.items():
        with pytest.raises(InputError) as raised:
            lethe.table(name)
        assert raised.value.reason == reason, name
    with pytest.raises(InputError, match="no table air"):
        lethe.scan("air.nope", catalog="lite")


def test_a_catalog_that_pyiceberg_cannot_open_is_named_without_its_secrets(places: Places) -> None:
    places.configured()
    also("odd", places.home / "mine", type="sql", uri="nothing://user:secret@host/db")

    with pytest.raises(InputError, match="the catalog odd") as raised:
        lethe.table("odd.air.flights")

    assert raised.value.reason == "CatalogUnusable"
    assert "secret" not in raised.value.message
