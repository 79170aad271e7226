"""What sites and package managers get of a release: chart, bundle for OLM, artifacts of registries, provenance."""

import base64
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.contract.definitions import RESOURCES

from dev import release
from dev.distribution import artifacthub, chart, listing, oci, olm, provenance

VERSION = release.version()
# What Artifact Hub accepts: https://artifacthub.io/docs/topics/annotations/helm
CATEGORIES = {
    "ai-machine-learning",
    "database",
    "integration-delivery",
    "monitoring-logging",
    "networking",
    "security",
    "storage",
    "streaming-messaging",
}
CAPABILITIES = {"basic install", "seamless upgrades", "full lifecycle", "deep insights", "auto pilot"}
TEXTS = {"category", "license", "operator", "operatorCapabilities", "containsSecurityUpdates", "prerelease"}
# Fields of the entries of each list, which are required unless they end in "?".
LISTS = {
    "changes": {"kind", "description"},
    "crds": {"kind", "version", "name", "displayName", "description"},
    "crdsExamples": {"apiVersion", "kind", "metadata", "spec"},
    "images": {"name", "image"},
    "links": {"name", "url"},
    "screenshots": {"title", "url"},
}


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the chart as it is released."""
    folder = tmp_path_factory.mktemp("chart")
    chart.package(folder)
    with tarfile.open(folder / f"lethe-{VERSION}.tgz") as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}  # type: ignore[union-attr]


def test_the_packaged_chart_has_the_annotations_of_artifact_hub(packaged: dict[str, bytes]) -> None:
    """All that are documented, but other names, recommendations, maintainers, which Chart.yaml has, and keys of PGP."""
    metadata = yaml.safe_load(packaged["lethe/Chart.yaml"])
    found = {name.removeprefix(chart.PREFIX): text for name, text in metadata["annotations"].items()}
    lists = {name: yaml.safe_load(found[name]) for name in LISTS}

    assert found.keys() == TEXTS | LISTS.keys()
    assert found["category"] in CATEGORIES
    assert found["operatorCapabilities"].lower() in CAPABILITIES
    assert (found["operator"], found["prerelease"]) == ("true", "false")
    for name, entries in lists.items():
        assert entries, name
        for entry in entries:
            assert entry.keys() == LISTS[name], name
    assert {change["kind"] for change in lists["changes"]} <= set(listing.CHANGES.values())
    assert [crd["kind"] for crd in lists["crds"]] == [example["kind"] for example in lists["crdsExamples"]]
    assert {image["image"].rpartition(":")[2] for image in lists["images"]} == {VERSION}
    assert all((listing.ROOT / "docs/images" / s["url"].rpartition("/")[2]).is_file() for s in lists["screenshots"])
    for key in ("home", "icon", "kubeVersion", "sources", "maintainers"):
        assert metadata[key]


def test_the_packaged_chart_is_complete_without_the_repository(packaged: dict[str, bytes]) -> None:
    assert {f"lethe/files/crds/{resource.kind.lower()}.yaml" for resource in RESOURCES} < packaged.keys()
    assert "lethe/LICENSE" in packaged
    assert b"](../" not in packaged["lethe/README.md"]


def test_the_changes_of_a_release_are_those_of_its_section() -> None:
    notes = "- New [page](docs/a.md)\n  of `x`.\n\n### Removed\n\n- Old.\n\n### Security\n\n- Closed *it*.\n"

    assert listing.changes(notes) == [
        {"kind": "added", "description": "New page of x."},
        {"kind": "removed", "description": "Old."},
        {"kind": "security", "description": "Closed it."},
    ]


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    return listing.render(olm.VALUES, olm.OPERATOR_NAMESPACE)


def test_the_bundle_names_no_namespace_of_the_rendered_chart(documents: list[dict[str, Any]]) -> None:
    """OLM says which they are: the operator's in its pod, the watched ones in an annotation of the pod."""
    parts = olm.sort_out(documents)
    files = olm.bundle(parts)
    manifest = yaml.safe_load(files["manifests/lethe.clusterserviceversion.yaml"])
    suggested = manifest["metadata"]["annotations"].pop("operatorframework.io/suggested-namespace")
    (deployment,) = manifest["spec"]["install"]["spec"]["deployments"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {variable["name"]: variable for variable in container["env"]}

    assert suggested == olm.OPERATOR_NAMESPACE
    for text in (json.dumps(manifest), json.dumps(parts.beside), json.dumps(parts.in_namespaces)):
        assert f'"{olm.WATCHED_NAMESPACE}"' not in text
        assert olm.OPERATOR_NAMESPACE not in text
    assert environment["LETHE_LEADER_LEASE"]["value"] == "$(POD_NAMESPACE)/lethe-operator"
    assert container["env"][0]["name"] == "POD_NAMESPACE"  # only variables below it can refer to it
    assert "olm.targetNamespaces" in environment["LETHE_WATCH_NAMESPACES"]["valueFrom"]["fieldRef"]["fieldPath"]


def test_the_bundle_has_the_rights_and_the_definitions_of_the_chart(documents: list[dict[str, Any]]) -> None:
    rules = [
        r
        for d in documents
        if d["kind"] == "Role" and d["metadata"]["name"].startswith("lethe-operator")
        for r in d["rules"]
    ]
    manifest = olm.manifest(olm.sort_out(documents))
    (granted,) = manifest["spec"]["install"]["spec"]["permissions"]
    owned = manifest["spec"]["customresourcedefinitions"]["owned"]

    assert granted["serviceAccountName"] == olm.OPERATOR_ACCOUNT
    assert all(rule in granted["rules"] for rule in rules)
    assert all(rule in rules for rule in granted["rules"])
    assert "clusterPermissions" not in manifest["spec"]["install"]["spec"]
    assert [(o["kind"], o["name"]) for o in owned] == [(r.kind, f"{r.plural}.lethe.dev") for r in RESOURCES]
    assert base64.b64decode(manifest["spec"]["icon"][0]["base64data"]).startswith(b"<svg")


def test_an_object_that_olm_cannot_install_is_refused(documents: list[dict[str, Any]]) -> None:
    unknown = {"kind": "ClusterRole", "metadata": {"name": "x"}, "rules": []}

    with pytest.raises(SystemExit, match="OLM cannot install the chart's ClusterRole x"):
        olm.sort_out([*documents, unknown])


def test_the_same_contents_make_the_same_artifact(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        artifacthub.write(tmp_path / name)
        oci.write_image(tmp_path / name / "image.tar", {"a/b": b"c"}, {"label": "value"}, "2026-12-01T10:00:00Z")

    for archive in ("artifacthub-repo.tar", "image.tar"):
        assert (tmp_path / "one" / archive).read_bytes() == (tmp_path / "two" / archive).read_bytes()


GITHUB = {
    "GITHUB_SERVER_URL": "https://github.example",
    "GITHUB_REPOSITORY": "a/b",
    "GITHUB_WORKFLOW_REF": "a/b/.github/workflows/release.yaml@refs/tags/v1.2.3",
    "GITHUB_RUN_ID": "7",
    "GITHUB_RUN_ATTEMPT": "2",
    "GITHUB_REF": "refs/tags/v1.2.3",
}
BUILD = {"LETHE_RELEASE_STARTED": "2026-12-01T10:00:00Z", "LETHE_IMAGE_BUILDER": "docker"}


def test_provenance_names_the_workflow_that_made_the_release() -> None:
    found = provenance.predicate(BUILD | GITHUB, "2026-12-01T10:09:00Z")

    assert found["runDetails"] == {
        "builder": {"id": "https://github.example/a/b/.github/workflows/release.yaml@refs/tags/v1.2.3"},
        "metadata": {
            "invocationId": "https://github.example/a/b/actions/runs/7/attempts/2",
            "startedOn": "2026-12-01T10:00:00Z",
            "finishedOn": "2026-12-01T10:09:00Z",
        },
    }
    assert found["buildDefinition"]["externalParameters"]["ref"] == "refs/tags/v1.2.3"


def test_provenance_names_only_what_the_release_was_made_from() -> None:
    """Without Docker, the images are not built on Debian's image."""
    by_docker = provenance.predicate(BUILD, "")["buildDefinition"]["resolvedDependencies"]
    by_buildah = provenance.predicate(BUILD | {"LETHE_IMAGE_BUILDER": "buildah"}, "")["buildDefinition"]
    (image,) = [d for d in by_docker if d.get("uri", "").startswith("docker://")]

    assert image["uri"] == "docker://docker.io/library/debian:bookworm-slim"
    assert by_buildah["resolvedDependencies"] == [d for d in by_docker if d is not image]
    assert all(len(next(iter(d["digest"].values()))) in (40, 64) for d in by_docker)


def test_a_statement_is_about_each_file_of_the_list() -> None:
    found = provenance.statement("aa  lethe-1.tgz\nbb  lethe-crds-1.yaml\n", {"buildDefinition": {}})

    assert found["subject"] == [
        {"name": "lethe-1.tgz", "digest": {"sha256": "aa"}},
        {"name": "lethe-crds-1.yaml", "digest": {"sha256": "bb"}},
    ]
    assert (found["_type"], found["predicateType"]) == (provenance.STATEMENT, provenance.PREDICATE)
