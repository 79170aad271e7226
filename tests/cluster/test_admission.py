"""Who may create an Erase, approve a vacuum, accept a head or change holds, asked of the real API server as two users.

Both hold all rights on Lethe's resources by RBAC; the policies of the chart alone tell them apart.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.install import CHART, helm
from tests.cluster.kube import Cluster, Object, Refused
from tests.cluster.test_crds import cluster  # the definitions alone, without an operator
from tests.support.clock import wait_until
from tests.support.manifests import dataset_manifest, named, policy_manifest, restatement_manifest

pytestmark = pytest.mark.cluster
__all__ = ["cluster"]

OFFICER, ENGINEER = "officer", "engineer"
GROUPS = {OFFICER: "privacy-officers", ENGINEER: "data-engineers"}
APPROVE, ACCEPT = "lethe.dev/approve", "lethe.dev/accept-head"
READY_SECONDS = 30
HOLDS = [{"name": "case-7", "filter": "v > 3", "until": "2100-01-01T00:00:00Z"}]


def as_user(user: str, cluster: Cluster) -> Cluster:
    return cluster.acting_as(user, GROUPS[user])


@pytest.fixture(scope="module")
def restricted(cluster: Cluster) -> Iterator[Cluster]:
    """A namespace in which both users may do everything with Lethe's resources, and the chart's policies for it."""
    name = f"admission-{uuid.uuid4().hex[:6]}"
    meta = {"name": name, "namespace": name}
    kinds = ["datasets", "restatements", "vacuumpolicies"]
    inside = cluster.in_namespace(name)
    inside.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": meta,
            "rules": [{"apiGroups": ["lethe.dev"], "resources": kinds, "verbs": ["*"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [
                {"kind": "Group", "name": g, "apiGroup": "rbac.authorization.k8s.io"} for g in GROUPS.values()
            ],
        },
    )
    policies = rendered(cluster, name)
    inside.apply(*policies)
    for user in (OFFICER, ENGINEER):
        as_user(user, inside).create(named(f"flights-{user}", dataset_manifest()))
    as_user(ENGINEER, inside).create(named("manual", policy_manifest(approval="Manual")))
    enforced(inside)
    yield inside
    cluster.delete(*(f"{body['kind']}/{body['metadata']['name']}" for body in policies))
    cluster.begin_to_delete(f"namespace/{name}")


def rendered(cluster: Cluster, namespace: str) -> list[Any]:
    """The policies of a release of its own, so that they can be beside those of another."""
    allowed = {"groups": [GROUPS[OFFICER]]}
    values = {
        "watchNamespaces": [namespace],
        "admission": {
            "enabled": True,
            "erase": allowed,
            "approveVacuum": allowed,
            "acceptHead": {"users": [OFFICER]},
            "holds": allowed,
        },
    }
    where = ["--namespace", f"{namespace}-system", "--show-only", "templates/admission.yaml"]
    done = helm(cluster, "template", "lethe", str(CHART), *where, "-f", "-", stdin=json.dumps(values))
    assert done.returncode == 0, done.stderr
    return [body for body in yaml.safe_load_all(done.stdout) if body]


def enforced(cluster: Cluster) -> None:
    """Wait until the API server refuses what each policy restricts: it enforces a new policy within seconds."""
    engineer = as_user(ENGINEER, cluster)
    approved, accepted, held = (named("probe", dataset_manifest()) for _ in range(3))
    approved["metadata"]["annotations"], accepted["metadata"]["annotations"] = {APPROVE: "x"}, {ACCEPT: "1"}
    held["spec"]["holds"] = HOLDS
    erase = restatement_manifest("Erase")
    for body in (approved, accepted, held, erase):
        wait_until(lambda b=body: refused(lambda: engineer.create(b, dry_run=True)), READY_SECONDS)  # type: ignore[misc]
    automatic = {"spec": {"approval": "Automatic"}}
    wait_until(lambda: refused(lambda: engineer.patch("vacuumpolicy/manual", automatic, dry_run=True)), READY_SECONDS)


def refused(request: Callable[[], object]) -> bool:
    """Whether a policy refused it; another refusal is an error."""
    try:
        request()
    except Refused as e:
        if "may not" not in str(e):
            raise
        return True
    return False


def test_only_the_named_group_creates_an_erase(restricted: Cluster) -> None:
    erase = named("erase-a", restatement_manifest("Erase"))

    with pytest.raises(Refused) as refusal:
        as_user(ENGINEER, restricted).create(erase)
    as_user(ENGINEER, restricted).create(named("revert-a", restatement_manifest("Revert")))
    as_user(OFFICER, restricted).create(erase)

    assert "erase-a: engineer may not create an Erase or a Redact. Allowed are the group privacy-officers" in str(
        refusal.value
    )
    assert "admission.erase" in str(refusal.value)
    # What an Erase leaves open to be changed stays open: whoever owns the pipeline may pause it.
    as_user(ENGINEER, restricted).patch("restatement/erase-a", {"spec": {"cancel": True}})


@pytest.mark.parametrize(("annotation", "value"), [(APPROVE, "6f1c9a0b2d34e588"), (ACCEPT, "8642949070972100074")])
def test_only_those_named_approve_a_vacuum_or_accept_a_head(restricted: Cluster, annotation: str, value: str) -> None:
    ref = f"dataset/flights-{ENGINEER}"

    def annotated(name: str, with_value: str | None) -> Object:
        return {"metadata": {"annotations": {name: with_value}}}

    with pytest.raises(Refused) as refusal:
        as_user(ENGINEER, restricted).patch(ref, annotated(annotation, value))
    as_user(OFFICER, restricted).patch(ref, annotated(annotation, value))

    assert f"engineer may not set the annotation {annotation}" in str(refusal.value)
    # Another change of an annotated Dataset, and the removal of the annotation, are free.
    as_user(ENGINEER, restricted).patch(ref, annotated("team", "flights"))
    as_user(ENGINEER, restricted).patch(ref, annotated(annotation, None))


@pytest.mark.parametrize("annotation", [APPROVE, ACCEPT])
def test_a_dataset_is_not_created_with_an_annotation_of_others(restricted: Cluster, annotation: str) -> None:
    body = named("created-annotated", dataset_manifest())
    body["metadata"]["annotations"] = {annotation: "1"}

    with pytest.raises(Refused, match="may not set the annotation"):
        as_user(ENGINEER, restricted).create(body)


def test_a_policy_stays_manual_unless_an_approver_changes_it(restricted: Cluster) -> None:
    automatic = {"spec": {"approval": "Automatic"}}

    with pytest.raises(Refused, match="may not change spec"):
        as_user(ENGINEER, restricted).patch("vacuumpolicy/manual", automatic)
    as_user(ENGINEER, restricted).patch("vacuumpolicy/manual", {"spec": {"triggers": {"activeTombstones": 20}}})

    as_user(OFFICER, restricted).patch("vacuumpolicy/manual", automatic)


def test_only_the_named_group_changes_holds_or_deletes_a_dataset_with_holds(restricted: Cluster) -> None:
    engineer, officer, ref = as_user(ENGINEER, restricted), as_user(OFFICER, restricted), "dataset/held"
    engineer.create(named("held", dataset_manifest()))

    for holds in (HOLDS, [{"name": "all"}]):
        with pytest.raises(Refused, match="held: engineer may not add, change or remove spec"):
            engineer.patch(ref, {"spec": {"holds": holds}})
        officer.patch(ref, {"spec": {"holds": holds}})
    with pytest.raises(Refused, match="may not add, change or remove spec"):
        engineer.patch(ref, {"spec": {"holds": None}})
    with pytest.raises(Refused, match="held: engineer may not delete a Dataset with spec"):
        engineer.delete(ref)
    # Everything else of the Dataset stays open to be changed.
    engineer.patch(ref, {"spec": {"consolidation": {"suspend": True}}})

    officer.patch(ref, {"spec": {"holds": None}})
    engineer.delete(ref)
