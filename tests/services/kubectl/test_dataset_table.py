"""The commands on a table, by the name of its Dataset."""

import json

import pytest
import yaml
from lethe.cli import opening
from lethe.ledger.ledger import BatchState

from tests.services.kubectl.conftest import LocalApi
from tests.support.builders import a_batch
from tests.tables.lethe.cli.conftest import Kept


@pytest.fixture
def kept(local: LocalApi, kept: Kept) -> Kept:
    """The table of the Dataset flights, with a promoted and a reverted batch."""
    local.dataset("flights")
    kept.commit("B", batches=[a_batch("A"), a_batch("B", BatchState.REVERTED, restatement="ns/r/1")])
    return kept


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("name", ["flights", "dataset/flights"])
def test_the_batches_of_a_datasets_table_are_listed(local: LocalApi, name: str) -> None:
    listed = local.lethe("batches", name, "-o", "json")
    table = local.lethe("batches", "local.air.flights", "-o", "json")

    assert [b["id"] for b in json.loads(listed.stdout)] == ["A", "B"], listed.output
    assert listed.stdout == table.stdout


@pytest.mark.usefixtures("kept")
def test_each_form_of_output_has_the_same_batches(local: LocalApi) -> None:
    wide, table = local.lethe("batches", "flights", "-o", "wide").stdout, local.lethe("batches", "flights").stdout

    assert local.lethe("batches", "flights", "-o", "name").stdout == "A\nB\n"
    in_yaml = yaml.safe_load(local.lethe("batches", "flights", "-o", "yaml").stdout)
    assert in_yaml == json.loads(local.lethe("batches", "flights", "--json").stdout)
    added = ["BYTES", "OBJECTS", "RUN", "REFERENCE", "REQUESTED", "BY", "TICKET", "REASON"]
    assert wide.splitlines()[0].split()[-8:] == added
    assert "BYTES" not in table


@pytest.mark.usefixtures("kept")
def test_the_erasures_of_a_datasets_table_are_listed_in_each_form(local: LocalApi) -> None:
    assert local.lethe("erasures", "list", "flights").stdout.split()[0] == "RESTATEMENT"
    assert local.lethe("erasures", "list", "flights", "-o", "wide").stdout.split()[-1] == "SHA256"
    assert local.lethe("erasures", "list", "flights", "-o", "yaml").stdout == "[]\n"
    assert local.lethe("erasures", "verify", "dataset/flights").exit_code == 0


READS = (
    ("read",),
    ("history", "A"),
    ("doctor",),
    ("track", "--dry-run"),
    ("ledger", "log"),
    ("ledger", "show"),
    ("ledger", "verify"),
)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_each_command_on_a_table_takes_its_dataset(local: LocalApi, words: tuple[str, ...]) -> None:
    group = 2 if words[0] == "ledger" else 1
    by_dataset, by_table = ((*words[:group], name, *words[group:]) for name in ("dataset/flights", "local.air.flights"))

    named = local.lethe(*by_dataset)

    assert named.stdout
    assert named.stdout == local.on_table(*by_table).stdout


def test_a_table_that_is_not_there_yet_is_created_by_the_first_consolidation(local: LocalApi) -> None:
    local.dataset("young")

    refused = local.lethe("batches", "young")

    assert (refused.exit_code, refused.stdout) == (10, "")
    assert "TableNotFound: catalog local has no table air.young." in refused.stderr
    look = f"lethe why dataset/young --dir {local.folder.path}"
    assert f"The first consolidation creates it: `{look}`" in refused.stderr


def test_a_catalog_that_this_machine_does_not_know_is_an_error_that_says_where_to_add_it(local: LocalApi) -> None:
    local.dataset("other", table={"catalog": "lake", "name": "air.other"})

    refused = local.lethe("batches", "other")

    assert refused.exit_code == 10
    assert "dataset/other has its table in the catalog lake" in refused.stderr
    assert f"add the catalog lake to {local.folder.catalogs}" in refused.stderr


@pytest.mark.usefixtures("kept")
def test_an_unknown_dataset_is_an_error_with_a_suggestion(local: LocalApi) -> None:
    assert "Do you mean flights?" in local.lethe("batches", "flihgts").stderr


def test_without_the_package_for_resources_a_table_can_still_be_named(
    local: LocalApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_RESOLVER", "a_package_that_is_missing")

    refused = local.lethe("batches", "flights")

    assert (refused.exit_code, "lethe-lake[kubectl]" in refused.stderr) == (10, True)
