"""Replacements and lists that a Restatement may not name: the operator says so, and starts no run for them."""

from typing import Any

import pytest
from lethe_operator.resources.observed import CatalogPlace, NoTable
from lethe_operator.resources.restatement import Restatement

from tests.support.builders import NOW, a_ledger, ago
from tests.support.resources import SETTINGS, a_dataset, a_restatement, a_table, a_world, condition, message
from tests.support.statuses import decide

OWN, VICTIM = "s3://lake/warehouse/air/flights", "s3://lake/placed/sales/orders"
REMOTE = {"main": CatalogPlace("", "s3://lake/warehouse")}


def replayed(uri: str) -> Restatement:
    return a_restatement("r", operation="Replay", replacement={"batchId": "n", "uri": uri})


def listed(uri: str) -> Restatement:
    return a_restatement("r", batchIds=[], batchIdsFrom={"uri": uri})


def status_of(restatement: Restatement, catalogs: Any = REMOTE, **world: Any) -> tuple[Any, int]:
    """Its status, and how many runs start. The table of a Dataset of another namespace is at VICTIM."""
    table = {"uuid": "other", "location": VICTIM}
    other = a_dataset(
        "orders",
        meta={"namespace": "sales", "creationTimestamp": ago(hours=9).isoformat()},
        status={"table": table},
        buffer={"uri": "s3://lake/sales"},
    )
    known = {"table": a_table(a_ledger("A")), **world}
    seen = a_world(restatements=(restatement,), other_namespaces=(other,), catalogs=catalogs, **known)
    dataset = a_dataset(table={"catalog": "main", "name": "air.flights", "create": {"schema": "id INT"}})
    actions = decide(dataset, seen, NOW, SETTINGS)
    return actions.restatement_statuses["r"], len(actions.launches)


@pytest.mark.parametrize("naming", [replayed, listed])
@pytest.mark.parametrize(
    "uri",
    [
        f"{VICTIM}/data/x",
        f"{VICTIM}/metadata/v1.metadata.json",
        VICTIM,
        "s3a://lake/placed/sales/orders/",
        "s3://lake//placed/sales/orders/x",
        "s3://lake/placed/x/../sales/orders/x",
        "s3://lake/placed/sales%2forders/x",
        "s3://lake/placed",
        f"{OWN}/data",
        "s3://lake/files/of/flights",
        "s3://lake/warehouse",
        "s3://lake",
    ],
)
def test_a_place_in_or_above_a_table_is_not_read_whatever_its_spelling(naming: Any, uri: str) -> None:
    own = a_table(a_ledger("A"), write_paths={"write.data.path": "s3://lake/files/of/flights"})

    status, runs = status_of(naming(uri), table=own)

    reason = condition(status, "Stalled")[1]
    assert (reason, runs) == ("PlaceInTable", 0) or (naming is replayed and reason == "ReplacementInBuffer")
    assert uri in message(status, "Stalled")


@pytest.mark.parametrize("naming", [replayed, listed])
def test_a_local_file_needs_a_local_catalog(naming: Any) -> None:
    status, runs = status_of(naming("file:///etc/passwd"))

    assert (condition(status, "Stalled"), runs) == (("True", "PlaceLocal"), 0)
    assert "file:///etc/passwd" in message(status, "Stalled")
    local = {"main": CatalogPlace("", "file:///lake/warehouse", is_local=True)}
    assert status_of(naming("file:///lake/changes/x"), catalogs=local)[1] == 1


@pytest.mark.parametrize("restatement", [replayed("s3://lake/changes/n"), listed("s3://lake/lists/ids.txt")])
def test_a_place_that_has_nothing_to_do_with_a_table_is_left_to_the_run(restatement: Restatement) -> None:
    assert status_of(restatement)[1] == 1
    assert status_of(restatement, catalogs={})[1] == 1


def test_it_is_refused_before_the_table_exists() -> None:
    status, _ = status_of(listed(f"{VICTIM}/x"), table=NoTable())

    assert condition(status, "Stalled") == ("True", "PlaceInTable")
