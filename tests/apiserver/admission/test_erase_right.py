"""The policies of the chart's value admission.eraseRight, and the operator's question, on a real API server.

The officer may erase rows of `bookings` and not of `loyalty`. All accounts may create and change Restatements.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from lethe.contract.kubernetes import GROUP
from lethe.contract.restatement import Requester
from lethe.kube import NAMESPACES, RESTATEMENTS, SECRETS, SELF_REVIEWS, SERVICE_ACCOUNTS, Kube, RequestRefused
from lethe_operator.reasons import Reason
from lethe_operator.request.reconcile import EraseRights

from tests.services.chart.chart import render
from tests.support.clock import wait_until
from tests.support.commands import definitions, lethe
from tests.support.documents import Document, resource
from tests.support.manifests import restatement_manifest
from tests.support.servers.gateway import binding, kube_of, kubeconfig_of, role, token_of
from tests.support.servers.kubernetes import ApiServerProcess, api_server, apply_definitions, kubectl, tool

SYSTEM, NAMESPACE, OPERATOR = "lethe-system", "default", "lethe-operator"
RBAC = "rbac.authorization.k8s.io"
OFFICER, ENGINEER = "officer", "engineer"
SUBJECT = {"identity": "customer", "valuesFrom": {"secretKeyRef": {"name": "erase-ana", "key": "values"}}}


@dataclass(frozen=True)
class Cluster:
    """An API server with the policies."""

    server: ApiServerProcess

    def kube(self, account: str, namespace: str = NAMESPACE) -> Kube:
        return kube_of(self.server, token_of(self.server.kube, account, namespace))

    def requester(self, account: str) -> Requester:
        """Who an account is, as it learns itself."""
        user = self.kube(account).review(SELF_REVIEWS, "", {})["userInfo"]
        return Requester.of(user["username"], user["groups"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with api_server(tmp_path_factory.mktemp("admission")) as server:
        apply_definitions(server, definitions())
        server.kube.create(NAMESPACES, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        for namespace, account in ((NAMESPACE, OFFICER), (NAMESPACE, ENGINEER), (SYSTEM, OPERATOR)):
            body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}
            server.kube.create(SERVICE_ACCOUNTS, namespace, body)
        writes = role("writes", NAMESPACE, ("restatements", "create,get,patch"))
        erases = role("erases-bookings", NAMESPACE, ("datasets", "erase"))
        erases["rules"][0]["resourceNames"] = ["bookings"]
        secrets = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "patch", "delete"]}
        writes["rules"].append(secrets)
        documents = render({"watchNamespaces": [NAMESPACE], "admission": {"eraseRight": {"enabled": True}}})
        kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        rbac = [
            d for d in documents if d["kind"] in ("Role", "RoleBinding") and d["metadata"]["namespace"] == NAMESPACE
        ]
        kubectl(
            server,
            "apply",
            writes,
            erases,
            binding(writes, OFFICER),
            binding(writes, ENGINEER),
            binding(writes, OPERATOR, SYSTEM),
            binding(erases, OFFICER),
            {**binding(writes, "ana"), "subjects": [{"kind": "User", "name": "ana", "apiGroup": RBAC}]},
            *rbac,
            *(d for d in documents if d["kind"] in kinds),
        )
        found = Cluster(server)
        engineer = found.kube(ENGINEER)
        for body in (erase("probe", "bookings"), request("probe"), part("probe")):
            wait_until(lambda b=body: _is_refused(engineer, b), 30)  # type: ignore[misc]
        yield found


def erase(name: str, dataset: str) -> Document:
    return _named(name, restatement_manifest("Erase", datasetRef={"name": dataset}))


def redact(name: str, dataset: str) -> Document:
    return _named(name, restatement_manifest("Redact", datasetRef={"name": dataset}))


def request(name: str, annotations: dict[str, str] | None = None) -> Document:
    """A Restatement with a subject."""
    spec = {"operation": "Erase", "subject": SUBJECT, "datasetSelector": {}, "suspend": True}
    return resource("Restatement", name, spec, annotations=annotations or {})


def part(name: str, **metadata: Any) -> Document:
    """A Restatement that says it belongs to another one."""
    body = _named(name, restatement_manifest("Revert"))
    body["metadata"].update(metadata or {"labels": {f"{GROUP}/request": "forget-ana"}})
    return body


def annotated(body: Document) -> Requester | None:
    """The requester, as the annotations say."""
    return Requester.of_annotations(body["metadata"]["annotations"])


def _named(name: str, body: Document) -> Document:
    return {**body, "metadata": {**body["metadata"], "name": name}}


def _is_refused(kube: Kube, body: Document) -> bool:
    try:
        kube.create(RESTATEMENTS, NAMESPACE, body, dry_run=True)
    except RequestRefused as e:
        if "ValidatingAdmissionPolicy" not in e.explanation:
            raise
        return True
    return False


def test_an_erase_and_a_redact_need_the_verb_on_its_dataset(cluster: Cluster) -> None:
    with pytest.raises(RequestRefused) as refused:
        cluster.kube(OFFICER).create(RESTATEMENTS, NAMESPACE, erase("erase-loyalty", "loyalty"))
    with pytest.raises(RequestRefused, match=r"verb erase on datasets\.lethe\.dev loyalty"):
        cluster.kube(OFFICER).create(RESTATEMENTS, NAMESPACE, redact("redact-loyalty", "loyalty"))
    cluster.kube(OFFICER).create(RESTATEMENTS, NAMESPACE, redact("redact-bookings", "bookings"))
    cluster.kube(OFFICER).create(RESTATEMENTS, NAMESPACE, erase("erase-bookings", "bookings"))
    # What an Erase leaves open to be changed stays open, and other operations need no such right.
    cluster.kube(ENGINEER).patch(RESTATEMENTS, NAMESPACE, "erase-bookings", {"spec": {"cancel": True}})
    cluster.kube(ENGINEER).create(RESTATEMENTS, NAMESPACE, _named("revert", restatement_manifest("Revert")))

    said = refused.value.explanation
    assert (
        f"erase-loyalty: system:serviceaccount:default:{OFFICER} may not erase rows or values of the Dataset loyalty"
        in said
    )
    assert "verb erase on datasets.lethe.dev loyalty in the namespace default" in said


def test_the_operator_decides_by_the_rights_of_the_requester(cluster: Cluster) -> None:
    """It asks with the Role that the chart gives it, for the user whom the policy has confirmed."""
    asked = cluster.requester(OFFICER)
    created = cluster.kube(OFFICER).create(RESTATEMENTS, NAMESPACE, request("forget-ana", asked.annotations))
    rights = EraseRights(cluster.kube(OPERATOR, SYSTEM))

    assert annotated(created) == asked
    assert rights.may_erase(asked, NAMESPACE, "bookings") is None
    refused = rights.may_erase(asked, NAMESPACE, "loyalty")
    assert refused is not None
    assert (refused.reason, refused.transient) == (Reason.REQUESTER_NOT_ALLOWED, False), refused
    assert rights.may_erase(cluster.requester(ENGINEER), NAMESPACE, "bookings") is not None


def test_a_request_in_the_name_of_another_is_refused_and_the_message_has_the_right_annotations(
    cluster: Cluster,
) -> None:
    engineer, officer = cluster.requester(ENGINEER), cluster.requester(OFFICER)
    forged = (
        None,
        officer.annotations,
        replace(engineer, groups=(*engineer.groups, "privacy-officers")).annotations,
        replace(engineer, groups=engineer.groups[::-1]).annotations,
        {k: v for k, v in engineer.annotations.items() if k.endswith("requested-by")},
    )

    for annotations in forged:
        with pytest.raises(RequestRefused) as refused:
            cluster.kube(ENGINEER).create(RESTATEMENTS, NAMESPACE, request("forged", annotations))
        for name, value in engineer.annotations.items():
            assert f"{name}: '{value}'" in refused.value.explanation


def test_the_command_says_who_the_requester_is(cluster: Cluster, tmp_path: Path) -> None:
    """Its user may not list Datasets."""
    kubeconfig = kubeconfig_of(cluster.server, tmp_path / "kubeconfig", token_of(cluster.server.kube, OFFICER))
    (tmp_path / "values").write_text("ana@example.org\n")
    command = (
        "erase",
        "--everywhere",
        "--subject",
        "customer",
        "--values",
        str(tmp_path / "values"),
        "--name",
        "by-command",
    )

    done = lethe(kubeconfig, *command)

    assert done.returncode == 0, done.stderr
    stored = cluster.server.kube.get(RESTATEMENTS, NAMESPACE, "by-command")
    assert annotated(stored) == cluster.requester(OFFICER)
    secret = cluster.server.kube.get(
        SECRETS, NAMESPACE, stored["spec"]["subject"]["valuesFrom"]["secretKeyRef"]["name"]
    )
    assert secret["metadata"]["ownerReferences"][0]["uid"] == stored["metadata"]["uid"]


def test_who_requested_it_never_changes(cluster: Cluster) -> None:
    officer, engineer = cluster.requester(OFFICER), cluster.requester(ENGINEER)
    cluster.kube(OFFICER).create(RESTATEMENTS, NAMESPACE, request("fixed", officer.annotations))
    changed: list[dict[str, str | None]] = [
        dict(engineer.annotations),
        {"lethe.dev/requested-by-groups": "[]"},
        dict.fromkeys(officer.annotations),
    ]

    for account in (OFFICER, ENGINEER):
        for annotations in changed:
            with pytest.raises(RequestRefused, match="cannot change") as refused:
                cluster.kube(account).patch(
                    RESTATEMENTS, NAMESPACE, "fixed", {"metadata": {"annotations": annotations}}
                )
            assert officer.annotations["lethe.dev/requested-by-groups"] in refused.value.explanation
    # All else may.
    other = {"metadata": {"annotations": {"team": "a"}}, "spec": {"suspend": False}}
    stored = cluster.kube(ENGINEER).patch(RESTATEMENTS, NAMESPACE, "fixed", other)
    assert annotated(stored) == officer


def test_only_the_operator_makes_the_erases_of_a_request(cluster: Cluster) -> None:
    """It is exempt from the verb: it has asked whether the requester has it."""
    owner = {"apiVersion": "lethe.dev/v1beta1", "kind": "Restatement", "name": "forget-ana", "uid": "u"}
    by_label, by_owner = part("by-label"), part("by-owner", ownerReferences=[owner])
    plain = cluster.kube(OFFICER).create(RESTATEMENTS, NAMESPACE, _named("plain", restatement_manifest("Revert")))
    name = plain["metadata"]["name"]

    for body in (by_label, by_owner):
        with pytest.raises(RequestRefused, match="only the operator"):
            cluster.kube(OFFICER).create(RESTATEMENTS, NAMESPACE, body)
        metadata = {k: body["metadata"][k] for k in ("labels", "ownerReferences") if k in body["metadata"]}
        with pytest.raises(RequestRefused, match="only the operator"):
            cluster.kube(OFFICER).patch(RESTATEMENTS, NAMESPACE, name, {"metadata": metadata})
    made = erase("forget-ana-loyalty", "loyalty")
    made["metadata"].update(labels={f"{GROUP}/request": "forget-ana"}, ownerReferences=[owner])
    operator = cluster.kube(OPERATOR, SYSTEM)
    assert operator.create(RESTATEMENTS, NAMESPACE, made)["metadata"]["ownerReferences"] == [owner]
    # Others may still pause or cancel it.
    cluster.kube(ENGINEER).patch(RESTATEMENTS, NAMESPACE, "forget-ana-loyalty", {"spec": {"cancel": True}})


@pytest.mark.parametrize("groups", [(), ('a "b"', "c\\d", "it's", "ärzte", "e,f")])
def test_the_policy_writes_groups_as_clients_do(cluster: Cluster, groups: tuple[str, ...]) -> None:
    """Names of groups come from outside the cluster, and may have any characters."""
    asked = Requester("ana", (*groups, "system:authenticated"))

    message = created_as(cluster, asked, request("by-ana")).stderr
    for name, value in asked.annotations.items():
        assert f"{name}: '" + value.replace("'", "''") + "'" in message
    done = created_as(cluster, asked, request("by-ana", asked.annotations))
    assert done.returncode == 0, done.stderr


def created_as(cluster: Cluster, user: Requester, body: Document) -> "subprocess.CompletedProcess[str]":
    """Ask, as a user, whether the API server would create an object."""
    command = [tool("kubectl"), "--kubeconfig", str(cluster.server.kubeconfig), "create", "-f", "-", "--dry-run=server"]
    command += [f"--as={user.username}", *(f"--as-group={g}" for g in user.groups)]
    return subprocess.run(command, input=json.dumps(body), capture_output=True, text=True, timeout=60, check=False)
