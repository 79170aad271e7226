"""Erasures of a subject through the gateway: its values become a Secret, once, with the rights of the caller."""

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import lethe
import pytest
from lethe.contract.restatement import Requester
from lethe.kube import RESTATEMENTS, SECRETS, SELF_REVIEWS, KubeError

from tests.support.documents import Document
from tests.support.gateway_site import Site, create_people
from tests.support.servers.gateway import kube_of, role

SPEC: dict[str, Any] = {"operation": "Erase", "datasetSelector": {}, "ticket": "DSR-1"}
REDACT: dict[str, Any] = {
    **SPEC,
    "operation": "Redact",
    "redact": {"columns": [{"column": "name", "method": "SetNull"}]},
}
ANA = {"customer": ["ana@example.org", "ana@example.com"], "phone": ["+49 1"]}
RESTATE = [("datasets", "get,list"), ("restatements", "get,list,create")]


def with_secrets(name: str, verbs: str) -> Document:
    """Restatements, and these verbs on Secrets."""
    document = role(name, "default", *RESTATE)
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": verbs.split(",")}
    return {**document, "rules": [*document["rules"], *([rule] if verbs else [])]}


@pytest.fixture(scope="module")
def people(site: Site) -> Iterator[None]:
    """Officers with different rights on Secrets."""
    officers = {"officer": "create,patch", "writer": "create", "nobody": ""}
    create_people(site.server, {name: [with_secrets(name, verbs)] for name, verbs in officers.items()})
    yield
    for kind in (RESTATEMENTS, SECRETS):
        for document in site.server.kube.list(kind, "default"):
            if document["metadata"]["name"].removeprefix("erase-").startswith("forget"):
                site.server.kube.delete(kind, "default", document["metadata"]["name"])


def client(site: Site, account: str = "officer") -> lethe.GatewayClient:
    return lethe.GatewayClient(site.gateway.url, site.token(account))


@pytest.mark.usefixtures("people")
@pytest.mark.parametrize(("name", "spec"), [("forget-ana", SPEC), ("forget-ana-redact", REDACT)])
def test_values_become_a_secret_of_the_restatement_once(site: Site, name: str, spec: dict[str, Any]) -> None:
    kube = site.server.kube
    with client(site) as officer:
        first = officer.restate(spec, name, ANA)
        again = officer.restate(spec, name, ANA)

    assert (first["uid"], first["identities"], first["dataset"]) == (again["uid"], ["customer", "phone"], "")
    stored, secret = kube.get(RESTATEMENTS, "default", name), kube.get(SECRETS, "default", f"erase-{name}")
    refs = {i["identity"]: i["valuesFrom"]["secretKeyRef"] for i in stored["spec"]["subject"]["anyOf"]}
    assert refs == {i: {"name": f"erase-{name}", "key": i} for i in ANA}
    assert stored["spec"]["subject"]["deleteValues"] is True
    assert {k: b64decode(v).decode().splitlines() for k, v in secret["data"].items()} == ANA
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], secret["immutable"]) == ("Restatement", first["uid"], True)
    asked = kube_of(site.server, site.token("officer")).review(SELF_REVIEWS, "", {})["userInfo"]
    assert stored["metadata"]["annotations"] == Requester.of(asked["username"], asked["groups"]).annotations
    for text in (json.dumps(stored), json.dumps(first), site.gateway.log.read_text()):
        assert "ana@example" not in text


@pytest.mark.usefixtures("people")
def test_another_person_under_the_same_name_is_refused(site: Site) -> None:
    """Otherwise the caller would believe that the second one is erased."""
    other = {**ANA, "customer": ["bob@example.org"]}
    with client(site) as officer, client(site, "writer") as writer:
        officer.restate(SPEC, "forget-one", ANA)
        for values in (other, {"customer": ANA["customer"]}):
            with pytest.raises(lethe.GatewayProblem, match="AlreadyExists") as refused:
                officer.restate(SPEC, "forget-one", values)
            assert "example" not in refused.value.message
        with pytest.raises(lethe.GatewayProblem, match=r"AlreadyExists: .*right to patch secrets"):
            writer.restate(SPEC, "forget-one", ANA)

    data = site.server.kube.get(SECRETS, "default", "erase-forget-one")["data"]
    assert b64decode(data["customer"]).decode().splitlines() == ANA["customer"]


@pytest.mark.usefixtures("people")
def test_a_secret_of_others_is_not_taken_for_that_of_the_request(site: Site) -> None:
    """One that can change would accept any values."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "erase-forget-taken"},
        "data": {"customer": "eA=="},
    }
    site.server.kube.create(SECRETS, "default", secret)

    with (
        client(site) as officer,
        pytest.raises(lethe.GatewayProblem, match=r"AlreadyExists: .*not the one of this request"),
    ):
        officer.restate(SPEC, "forget-taken", {"customer": ["x"]})

    assert site.server.kube.get(SECRETS, "default", "erase-forget-taken")["data"] == secret["data"]


@pytest.mark.usefixtures("people")
def test_a_request_that_was_interrupted_can_be_repeated(site: Site) -> None:
    """After the Restatement and before the Secret; the Secret is not created again once the erasure is verified."""
    kube = site.server.kube
    with client(site) as officer:
        officer.restate(SPEC, "forget-late", ANA)
        kube.delete(SECRETS, "default", "erase-forget-late")
        officer.restate(SPEC, "forget-late", ANA)
        assert kube.get(SECRETS, "default", "erase-forget-late")["data"].keys() == ANA.keys()

        kube.delete(SECRETS, "default", "erase-forget-late")
        erased = {
            "type": "Erased",
            "status": "True",
            "reason": "Erased",
            "message": "",
            "lastTransitionTime": "2026-03-01T00:00:00Z",
        }
        kube.patch(RESTATEMENTS, "default", "forget-late", {"status": {"conditions": [erased]}}, "status")
        with pytest.raises(lethe.GatewayProblem, match=r"AlreadyExists: .*verified"):
            officer.restate(SPEC, "forget-late", ANA)
    with pytest.raises(KubeError, match="404"):
        kube.get(SECRETS, "default", "erase-forget-late")


@pytest.mark.usefixtures("people")
def test_who_may_not_create_secrets_creates_no_restatement(site: Site) -> None:
    with client(site, "nobody") as nobody, pytest.raises(lethe.GatewayProblem, match=r"Forbidden: .*create secrets in"):
        nobody.restate(SPEC, "forget-denied", ANA)

    with pytest.raises(KubeError, match="404"):
        site.server.kube.get(RESTATEMENTS, "default", "forget-denied")


@pytest.mark.usefixtures("people")
@pytest.mark.parametrize(
    ("name", "values", "pointer"),
    [
        ("", ANA, "#/name"),
        ("forget-bad", {"Not A Label": ["x"]}, "#/values"),
        ("forget-bad", {"customer": []}, "#/values/customer"),
        ("forget-bad", {"customer": ["ana@example.org\nbob@example.org"]}, "#/values/customer/0"),
        ("forget-bad", {"customer": [" "]}, "#/values/customer/0"),
        ("forget-bad", {f"i{n}": ["x"] for n in range(9)}, "#/values"),
    ],
)
def test_values_that_are_wrong_are_refused_without_showing_them(
    site: Site, name: str, values: dict[str, list[str]], pointer: str
) -> None:
    with client(site) as officer, pytest.raises(lethe.GatewayProblem, match="InvalidRequest") as refused:
        officer.restate(SPEC, name, values)

    assert refused.value.errors[0]["pointer"].startswith(pointer), refused.value.errors
    assert "example" not in str(refused.value.errors) + refused.value.message


@pytest.mark.usefixtures("people")
def test_one_request_shows_its_datasets_and_a_list_only_counts_them(site: Site) -> None:
    with client(site) as officer:
        officer.restate(SPEC, "forget-shown", ANA)
        part = {"name": "flights", "state": "Hidden", "restatement": "forget-shown-flights"}
        status = {"phase": "Running", "subject": {"selected": 1, "hidden": 1, "verified": 0, "datasets": [part]}}
        site.server.kube.patch(RESTATEMENTS, "default", "forget-shown", {"status": status}, "status")

        one = officer.restatement("forget-shown")
        (listed,) = [r for r in officer.restatements() if r["name"] == "forget-shown"]

    assert one["subject"] == status["subject"]
    assert listed["subject"] == {"selected": 1, "hidden": 1, "verified": 0}
