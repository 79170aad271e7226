"""Each rule of the resource definitions, once obeyed and once broken: only the API server enforces CEL.

Nothing is stored but where a rule compares with an earlier state, and such a Restatement is suspended.
"""

import copy
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.install import apply_definitions
from tests.cluster.kube import Cluster, Object, Refused
from tests.support.crd_rules import ACCEPTED, FIXED, FREE, FROM_A_MAP, REFUSED
from tests.support.manifests import dataset_manifest, named, restatement_manifest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster(bare_cluster: Cluster) -> Cluster:
    apply_definitions(bare_cluster)
    return bare_cluster


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_obeys_the_rules_is_accepted(cluster: Cluster, body: Object) -> None:
    cluster.create(body, dry_run=True)


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_breaks_a_rule_is_refused_with_a_message_that_names_it(
    cluster: Cluster, body: Object, message: str
) -> None:
    with pytest.raises(Refused) as refusal:
        cluster.create(body, dry_run=True)

    assert message.lower() in str(refusal.value).lower()


@pytest.fixture(scope="module")
def stored(cluster: Cluster) -> Iterator[dict[str, str]]:
    """One resource of each shape, stored under a name of this run's own; nothing starts, for their Dataset does not exist."""
    suffix = uuid.uuid4().hex[:8]
    bodies = {
        "revert": restatement_manifest("Revert", evictBySeconds=60),
        "by reference": restatement_manifest("Revert", batchIds=None, batchIdsFrom=FROM_A_MAP),
        "replay": restatement_manifest("Replay"),
        "undo": restatement_manifest("Undo"),
        "erase": restatement_manifest("Erase"),
        "redact": restatement_manifest("Redact"),
        "dataset": dataset_manifest(table={"catalog": "nowhere", "name": "crds.table"}),
    }
    refs = {}
    for key, body in bodies.items():
        copied = named(f"crds-{suffix}-{key.replace(' ', '-')}", copy.deepcopy(body))
        cluster.apply(copied)
        refs[key] = f"{copied['kind'].lower()}s.lethe.dev/{copied['metadata']['name']}"
    yield refs
    cluster.delete(*refs.values())


@pytest.mark.parametrize(("key", "change", "message"), FIXED.values(), ids=FIXED.keys())
def test_what_is_fixed_at_creation_cannot_be_edited(
    cluster: Cluster, stored: dict[str, str], key: str, change: Object, message: str
) -> None:
    """A request that was carried out must not turn into another one; a Dataset must not slip to another table."""
    with pytest.raises(Refused) as refusal:
        cluster.patch(stored[key], {"spec": change}, dry_run=True)

    assert message in str(refusal.value)


@pytest.mark.parametrize(("key", "change"), FREE.values(), ids=FREE.keys())
def test_what_steers_a_request_can_be_edited(
    cluster: Cluster, stored: dict[str, str], key: str, change: Object
) -> None:
    cluster.patch(stored[key], {"spec": change}, dry_run=True)


def test_cancelling_cannot_be_taken_back(cluster: Cluster, stored: dict[str, str]) -> None:
    """The user who cancelled may have relied on it."""
    cluster.patch(stored["replay"], {"spec": {"cancel": True}})

    with pytest.raises(Refused, match="cancel cannot be taken back"):
        cluster.patch(stored["replay"], {"spec": {"cancel": False}})


def test_a_field_cannot_be_removed_and_added_again(cluster: Cluster, stored: dict[str, str]) -> None:
    """Two patches that each look harmless would together change the request."""
    with pytest.raises(Refused, match="evictBySeconds is immutable"):
        cluster.patch(stored["revert"], {"spec": {"evictBySeconds": None}})


def test_a_user_cannot_write_a_status(cluster: Cluster, stored: dict[str, str]) -> None:
    """An applied status is dropped: only the subresource takes one."""
    cluster.patch(stored["revert"], {"status": {"phase": "Succeeded"}})

    body = cluster.get(stored["revert"])

    assert body is not None
    assert body.get("status", {}).get("phase") != "Succeeded"


def test_defaults_are_in_the_stored_resource(cluster: Cluster) -> None:
    """What is not written is what the reference says, for every client alike."""
    (dataset,) = cluster.apply(named("crds-defaults", dataset_manifest()), dry_run=True)
    (restatement,) = cluster.apply(named("crds-defaults", restatement_manifest(suspend=None)), dry_run=True)

    spec = dataset["spec"]
    assert spec["consolidation"] == {
        "mode": "Rewrite",
        "minBytes": "128Mi",
        "minBatches": 100,
        "maxAgeSeconds": 600,
        "maxBytesPerRun": "50Gi",
        "maxBatchesPerRun": 50000,
        "targetFileSizeBytes": "512Mi",
        "suspend": False,
    }
    assert spec["snapshots"] == {"maxAgeSeconds": 432000, "minToKeep": 5, "maxCount": 500}
    assert (spec["buffer"]["layout"], spec["buffer"]["retentionSeconds"], spec["deletes"]) == (
        "Directory",
        86400,
        "Auto",
    )
    assert "runTemplate" not in spec
    assert not any(restatement["spec"][name] for name in ("dryRun", "suspend", "cancel"))


@pytest.mark.parametrize("path", sorted((ROOT / "examples/flights").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_is_accepted(cluster: Cluster, path: Path) -> None:
    """Warnings count: strict validation names every unknown field."""
    cluster.run("apply", "--dry-run=server", "--validate=strict", "-f", str(path))


@pytest.mark.parametrize("kind", ["datasets", "restatements", "vacuumpolicies"])
def test_kubectl_explain_has_a_text_for_every_field(cluster: Cluster, kind: str) -> None:
    text = cluster.run("explain", f"{kind}.lethe.dev", "--recursive=false") + cluster.run(
        "explain", f"{kind}.lethe.dev.spec"
    )

    assert "<no description>" not in text
