"""The Python client with a real gateway and a real API server."""

from collections.abc import Iterator

import lethe
import pytest
from lethe.kube import RESTATEMENTS

from tests.support.gateway_lake import STATES
from tests.support.gateway_site import Site, create_people
from tests.support.servers.gateway import role

SPEC = {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchIds": ["A"], "reason": "sent twice"}


@pytest.fixture(scope="module")
def restater(site: Site) -> Iterator[lethe.GatewayClient]:
    """One who may also create Restatements."""
    rights = (("datasets", "get,list"), ("datasets/batches", "get"), ("restatements", "get,list,create"))
    create_people(site.server, {"restater": [role("restater", "default", *rights)]})
    with lethe.GatewayClient(site.gateway.url, site.token("restater")) as client:
        yield client
    for name in [r["name"] for r in client.restatements() if r["name"] != "revert-b"]:
        site.server.kube.delete(RESTATEMENTS, "default", name)


def test_it_shows_what_the_gateway_shows(restater: lethe.GatewayClient) -> None:
    assert list(restater.namespaces()) == ["default"]
    assert [d["name"] for d in restater.datasets()] == ["flights"]
    assert restater.dataset("flights")["table"]["name"] == "air.flights"
    assert [r["name"] for r in restater.runs("flights")] == ["flights-1", "flights-0"]
    assert [r["name"] for r in restater.runs(active=True)] == ["flights-1"]
    assert {b["id"]: b["state"] for b in restater.batches("flights")} == STATES
    assert {b["id"] for b in restater.batches("flights", states=["reverted"], restatement="revert-b")} == {"B", "late"}
    reverted = restater.batch("flights", "B")["history"][1]["restatement"]
    assert (reverted["reason"], reverted["ticket"]) == ("the producer sent B twice", "LAKE-7")
    assert [e["restatement"] for e in restater.erasures("flights", open_only=True)] == ["erase-d"]
    assert [e["found"] for e in restater.erasure("flights", "erase-d")] == [False]


def test_a_restatement_is_created_once_in_the_name_of_its_caller(site: Site, restater: lethe.GatewayClient) -> None:
    first = restater.restate(SPEC)
    again = restater.restate(SPEC)

    assert (first["batchIds"], first["reason"]) == (["A"], "sent twice")
    assert (first["name"], first["uid"]) == (again["name"], again["uid"])
    stored = site.server.kube.get(RESTATEMENTS, "default", first["name"])
    by = stored["metadata"]["annotations"]["lethe.dev/requested-by"]
    assert by == "system:serviceaccount:default:restater"
    with pytest.raises(lethe.GatewayProblem, match=f"AlreadyExists: .*{first['name']}"):
        restater.restate({**SPEC, "reason": "another one"}, name=first["name"])


def test_it_waits_for_the_commit(site: Site, restater: lethe.GatewayClient) -> None:
    name = restater.restate(SPEC, name="awaited")["name"]
    status = {"phase": "Succeeded", "result": {"snapshotId": 8642949070972100074}}
    site.server.kube.patch(RESTATEMENTS, "default", name, {"status": status}, "status")

    assert restater.wait(name, seconds=30)["result"]["snapshotIdText"] == "8642949070972100074"


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
    [
        ({**SPEC, "operation": "Remove"}, "InvalidRequest", "body.spec.operation"),
        ({"operation": "Revert"}, "Rejected", "spec.datasetRef"),
        ({**SPEC, "batchIDs": ["B"]}, "Rejected", "unknown field"),
        ({**SPEC, "replacement": {"batchId": "N", "uri": "s3://lake/n"}}, "Rejected", "only then allowed"),
        ({**SPEC, "reason": "x" * 2000}, "Rejected", "1024"),
    ],
)
def test_a_spec_that_is_wrong_is_refused_with_its_field(
    restater: lethe.GatewayClient, spec: dict[str, object], reason: str, said: str
) -> None:
    with pytest.raises(lethe.GatewayProblem) as raised:
        restater.restate(spec, name="wrong")

    assert (raised.value.reason, said in raised.value.message) == (reason, True), raised.value
    if reason == "InvalidRequest":
        assert [e["pointer"] for e in raised.value.errors] == [f"#/{said.removeprefix('body.').replace('.', '/')}"]


def test_who_may_not_create_restatements_learns_which_right_is_missing(site: Site) -> None:
    with (
        lethe.GatewayClient(site.gateway.url, site.token("analyst")) as analyst,
        pytest.raises(lethe.GatewayProblem, match=r"Forbidden: .*create restatements.lethe.dev") as raised,
    ):
        analyst.restate(SPEC)

    assert raised.value.status == 403


def test_a_token_is_asked_for_before_each_request(site: Site) -> None:
    """So a client that runs for days uses the current one."""
    tokens = iter(["expired", site.token("analyst")])
    with lethe.GatewayClient(site.gateway.url, lambda: next(tokens)) as client:
        with pytest.raises(lethe.GatewayProblem, match="Unauthenticated"):
            client.dataset("flights")
        assert client.dataset("flights")["name"] == "flights"
