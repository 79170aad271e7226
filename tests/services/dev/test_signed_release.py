"""A release that is pushed to a registry on this machine: signed with a key, and verified by cosign without a network."""

import base64
import dataclasses
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dev import release
from tests.support.servers.postgres import free_port
from tests.support.servers.process import running

# The first time, the bases of the images are built.
pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[3]
VERSION = release.version()
PASSWORD = "of-a-test"
# Nothing answers there: whatever asked Sigstore's servers would fail.
OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
IMAGES = ("lethe-operator", "lethe-spark", "lethe-olm-bundle", "charts/lethe")


def run(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environ}, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False
    )


def succeeded(*command: str | Path, **environ: str) -> str:
    done = run(*command, **environ)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@dataclass(frozen=True)
class Published:
    """A release, and where it was pushed to."""

    folder: Path
    registry: str
    public_key: Path
    trusted_root: Path
    """That no authority of Sigstore is trusted."""

    def verified(self, command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """What one of the commands of docs/releases.md says, with the key in the place of the workflow's identity."""
        key = ("--key", self.public_key, "--trusted-root", self.trusted_root, "--insecure-ignore-tlog")
        return run("cosign", command, *key, *arguments, **OFFLINE)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty registry, which ends with the module."""
    address = f"127.0.0.1:{free_port()}"

    def ask() -> None:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=5):
            pass

    command = ["crane", "registry", "serve", "--address", address]
    with running("the registry", command, tmp_path_factory.mktemp("registry"), ask):
        yield f"{address}/lethe"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, registry: str) -> Published:
    folder, keys = tmp_path_factory.mktemp("release"), tmp_path_factory.mktemp("keys")
    signer = {"COSIGN_PASSWORD": PASSWORD, "COSIGN_KEY": str(keys / "cosign.key"), "LETHE_REGISTRY_PLAIN_HTTP": "yes"}
    succeeded("cosign", "generate-key-pair", "--output-key-prefix", keys / "cosign", **signer)
    succeeded("dev/release.sh", folder, **signer)
    succeeded("dev/publish.sh", folder, registry, **signer, **OFFLINE)
    succeeded("cosign", "trusted-root", "create", "--out", keys / "trusted-root.json", **OFFLINE)
    return Published(folder, registry, keys / "cosign.pub", keys / "trusted-root.json")


def statement(attestation: str) -> dict[str, Any]:
    """What a verified attestation says."""
    envelope = json.loads(attestation.splitlines()[0])
    found: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return found


@pytest.mark.parametrize("name", IMAGES)
def test_what_a_registry_has_is_signed_with_its_provenance(published: Published, name: str) -> None:
    reference = f"{published.registry}/{name}:{VERSION}"
    digest = succeeded("crane", "digest", reference).strip()
    made = json.loads((published.folder / "provenance.json").read_text())["predicate"]

    signed = published.verified("verify", reference)
    attested = published.verified("verify-attestation", "--type", "slsaprovenance1", reference)

    assert signed.returncode == 0, signed.stderr
    assert attested.returncode == 0, attested.stderr
    found = statement(attested.stdout)
    assert [f"sha256:{s['digest']['sha256']}" for s in found["subject"]] == [digest]
    assert found["predicate"] == made


@pytest.mark.parametrize(("name", "package"), [("lethe-operator", "kopf"), ("lethe-spark", "pyspark")])
def test_an_image_is_attested_to_contain_what_syft_found(published: Published, name: str, package: str) -> None:
    attested = published.verified("verify-attestation", "--type", "spdxjson", f"{published.registry}/{name}:{VERSION}")

    assert attested.returncode == 0, attested.stderr
    found = statement(attested.stdout)["predicate"]
    assert found == json.loads((published.folder / f"{name}-{VERSION}.spdx.json").read_text())
    assert package in {p["name"] for p in found["packages"]}


def test_an_image_of_somebody_else_is_refused(published: Published) -> None:
    """A tag that was moved to another image, as by a thief of the registry's password."""
    genuine, other = f"{published.registry}/lethe-operator:{VERSION}", f"{published.registry}/lethe-operator:moved"
    succeeded("crane", "mutate", genuine, "--label", "moved=yes", "--tag", other)

    refused = published.verified("verify", other)

    assert refused.returncode != 0
    assert "no signatures found" in refused.stderr


def test_the_files_are_those_of_the_signed_checksums(published: Published, tmp_path: Path) -> None:
    sums, bundle = published.folder / "SHA256SUMS", published.folder / "SHA256SUMS.sigstore.json"
    changed = tmp_path / "SHA256SUMS"
    changed.write_text(sums.read_text().replace("a", "b", 1))

    verified = published.verified("verify-blob", "--bundle", bundle, sums)
    refused = published.verified("verify-blob", "--bundle", bundle, changed)

    assert verified.returncode == 0, verified.stderr
    assert refused.returncode != 0
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=published.folder, check=True)
    named = {line.split()[1] for line in sums.read_text().splitlines()}
    unsigned = {"SHA256SUMS", "SHA256SUMS.sigstore.json", "provenance.json", "provenance.sigstore.json"}
    assert {f.name for f in published.folder.iterdir() if f.is_file()} == named | unsigned


@pytest.mark.parametrize("name", [f"lethe-{VERSION}.tgz", f"lethe_lake-{VERSION}-py3-none-any.whl", "kubectl-lethe.rb"])
def test_a_changed_file_has_no_provenance(published: Published, tmp_path: Path, name: str) -> None:
    def attested(file: Path) -> subprocess.CompletedProcess[str]:
        bundle = published.folder / "provenance.sigstore.json"
        return published.verified("verify-blob-attestation", "--type", "slsaprovenance1", "--bundle", bundle, file)

    changed = tmp_path / name
    changed.write_bytes((published.folder / name).read_bytes() + b"x")

    genuine = attested(published.folder / name)
    assert genuine.returncode == 0, genuine.stderr
    assert attested(changed).returncode != 0


def test_another_key_is_refused(published: Published, tmp_path: Path) -> None:
    succeeded("cosign", "generate-key-pair", "--output-key-prefix", tmp_path / "other", COSIGN_PASSWORD=PASSWORD)
    other = dataclasses.replace(published, public_key=tmp_path / "other.pub")

    assert other.verified("verify", f"{published.registry}/charts/lethe:{VERSION}").returncode != 0


def test_the_chart_installs_from_the_registry(published: Published, tmp_path: Path) -> None:
    chart = f"oci://{published.registry}/charts/lethe"

    succeeded("helm", "pull", chart, "--version", VERSION, "--plain-http", "--destination", tmp_path)

    assert (tmp_path / f"lethe-{VERSION}.tgz").read_bytes() == (published.folder / f"lethe-{VERSION}.tgz").read_bytes()
    rendered = succeeded("helm", "template", tmp_path / f"lethe-{VERSION}.tgz", "--namespace", "lethe-system")
    assert f'image: "ghcr.io/lethe-lake/lethe-operator:{VERSION}"' in rendered


def test_artifact_hub_finds_the_metadata_of_the_repository(published: Published) -> None:
    reference = f"{published.registry}/charts/lethe:artifacthub.io"
    manifest = json.loads(succeeded("crane", "manifest", reference))
    (layer,) = manifest["layers"]

    assert manifest["config"]["mediaType"] == "application/vnd.cncf.artifacthub.config.v1+yaml"
    assert layer["mediaType"] == "application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml"
    blob = succeeded("crane", "blob", f"{reference.rpartition(':')[0]}@{layer['digest']}")
    assert blob == (ROOT / "dev/distribution/artifacthub-repo.yml").read_text()


def test_olm_accepts_the_bundle_and_says_what_is_wrong_with_another(published: Published, tmp_path: Path) -> None:
    """Its only warning takes every right on events.k8s.io for one on a version of this group that is gone."""
    bundle = published.folder / f"olm-bundle-{VERSION}"
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    (broken / "manifests/datasets.lethe.dev.yaml").unlink()

    accepted = run("olm-validate", bundle)
    refused = run("olm-validate", broken)

    assert accepted.returncode == 0, accepted.stdout
    assert all("Migrate the API(s) for events:" in line for line in accepted.stdout.splitlines()), accepted.stdout
    assert refused.returncode == 1
    assert "datasets.lethe.dev" in refused.stdout


def test_the_bundle_in_the_registry_is_the_one_that_was_validated(published: Published, tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar"
    succeeded("crane", "export", f"{published.registry}/lethe-olm-bundle:{VERSION}", archive)
    succeeded("tar", "-xf", archive, "-C", tmp_path)
    bundle = published.folder / f"olm-bundle-{VERSION}"

    for file in (f for f in bundle.rglob("*") if f.is_file()):
        assert (tmp_path / file.relative_to(bundle)).read_bytes() == file.read_bytes()
    labels = json.loads(succeeded("crane", "config", f"{published.registry}/lethe-olm-bundle:{VERSION}"))["config"][
        "Labels"
    ]
    assert labels["operators.operatorframework.io.bundle.package.v1"] == "lethe"
