"""Whose a buffer is, by its claim."""

import json
from dataclasses import replace

import pytest
from lethe.guards.claim import Claim, Holder, Owner, document, holder_of, parse, rejected

from tests.support.builders import NOW

OWNER = Owner("air", "flights", "uid-1", "table-1", "cluster-1")


@pytest.mark.parametrize(
    ("changes", "holder"),
    [
        ({}, Holder.OURS),
        ({"uid": "uid-2"}, Holder.TAKEN_OVER),  # created again under GitOps
        ({"uid": "uid-2", "cluster": "cluster-2"}, Holder.OTHERS),  # the same manifests in another cluster
        ({"uid": "uid-2", "table_uuid": "table-2"}, Holder.OTHERS),
        ({"uid": "uid-2", "table_uuid": ""}, Holder.OTHERS),
        ({"uid": "uid-2", "namespace": "sea"}, Holder.OTHERS),
        ({"uid": "uid-2", "name": "trains"}, Holder.OTHERS),
        ({"table_uuid": "table-2"}, Holder.TAKEN_OVER),  # the Dataset has accepted another table
        ({"table_uuid": ""}, Holder.OURS),  # there is no table yet
        ({"cluster": "cluster-2"}, Holder.TAKEN_OVER),  # the authority of the cluster was renewed
    ],
)
def test_a_claim_is_its_datasets_and_of_the_one_that_follows_it(changes: dict[str, str], holder: Holder) -> None:
    assert holder is holder_of(Claim(OWNER), replace(OWNER, **changes))


def test_where_the_cluster_is_not_known_nothing_is_taken_over() -> None:
    unknown = replace(OWNER, cluster="")

    assert Holder.OTHERS is holder_of(Claim(unknown), replace(unknown, uid="uid-2"))


def test_a_claim_names_its_owner_and_the_adopted_objects() -> None:
    content = document(OWNER, "File", tuple(f"n{i}" for i in range(2000)), 2000, NOW)

    said = json.loads(content)
    assert (parse(content).owner, said["layout"]) == (OWNER, "File")
    assert (said["adopted"]["count"], len(said["adopted"]["first"])) == (2000, 1000)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff\xfe",
        b'{"apiVersion": "lethe.dev/claim/v2", "dataset": {"namespace": "a", "name": "b", "uid": "c"}, "table": {"uuid": "d"}}',
        b'{"apiVersion": "lethe.dev/claim/v1", "dataset": {"namespace": "a", "name": "b", "uid": 7}, "table": {"uuid": "d"}}',
        b'{"apiVersion": "lethe.dev/claim/v1", "dataset": {"namespace": "a", "name": "b", "uid": ""}, "table": {"uuid": "d"}}',
    ],
)
def test_what_cannot_be_read_as_a_claim_is_somebodys(content: bytes) -> None:
    """Never nobody's: a newer version may have written it."""
    assert Holder.OTHERS is holder_of(parse(content), OWNER)
    assert "cannot read" in rejected(parse(content), "s3://lake/buffer")
