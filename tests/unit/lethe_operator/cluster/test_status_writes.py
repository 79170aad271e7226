"""A status is written for one object, whatever has its name by then."""

import pytest
from lethe.contract.status import RestatementStatus, StoredStatus
from lethe.kube import RESTATEMENTS
from lethe_operator.cluster.status import write
from lethe_operator.resources.common import Meta, parse_meta

from tests.support.fake_cluster import FakeCluster
from tests.support.resources import a_restatement_body

NOTHING = StoredStatus(RestatementStatus, {})
DONE = RestatementStatus(phase="Succeeded")


@pytest.fixture
def server() -> FakeCluster:
    return FakeCluster((RESTATEMENTS, a_restatement_body()))


def seen(server: FakeCluster) -> Meta:
    return parse_meta(server.get(RESTATEMENTS, "ns", "revert-a"))


def shown(server: FakeCluster) -> object:
    return (server.get(RESTATEMENTS, "ns", "revert-a").get("status") or {}).get("phase")


def test_an_object_that_was_edited_since_gets_its_status(server: FakeCluster) -> None:
    meta = seen(server)
    server.patch(RESTATEMENTS, "ns", "revert-a", {"metadata": {"annotations": {"of": "somebody"}}})

    write(server, RESTATEMENTS, meta, NOTHING, DONE)  # type: ignore[arg-type]

    assert shown(server) == "Succeeded"


def test_an_object_that_was_created_again_does_not_get_the_status_of_the_deleted_one(server: FakeCluster) -> None:
    """It may ask for something else, and would count as carried out."""
    meta = seen(server)
    server.delete(RESTATEMENTS, "ns", "revert-a")
    server.create(RESTATEMENTS, "ns", a_restatement_body(meta={"uid": "uid-2", "resourceVersion": "9"}, batchIds=["B"]))

    write(server, RESTATEMENTS, meta, NOTHING, DONE)  # type: ignore[arg-type]

    assert shown(server) is None


def test_of_a_deleted_object_nothing_is_written(server: FakeCluster) -> None:
    meta = seen(server)
    server.delete(RESTATEMENTS, "ns", "revert-a")

    assert write(server, RESTATEMENTS, meta, NOTHING, DONE) is None  # type: ignore[arg-type]
