"""Say how the files of a release were made, by SLSA's rules: python -m dev.distribution.provenance FOLDER

FOLDER/provenance.json is a statement of in-toto about the files of FOLDER/SHA256SUMS: https://slsa.dev/spec/v1.0/provenance
dev/release.sh says in variables when the build began (LETHE_RELEASE_STARTED) and what built the images (LETHE_IMAGE_BUILDER).
"""

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dev.distribution import listing

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = f"{listing.SOURCES.format(ref='main')}docs/releases.md#provenance"
# What a release is made from besides the commit. All of it is in the commit; its digests are here so that others can be compared.
LOCKS = (
    "dev/requirements/common.txt",
    "dev/requirements/operator.txt",
    "dev/requirements/spark.txt",
    "spark_apps/lethe/jars/jars.txt",
)


def predicate(environment: Mapping[str, str], finished: str) -> dict[str, Any]:
    """How a release of this checkout was made.

    Args:
        environment: That of dev/release.sh. A workflow of GitHub names itself there.
        finished: When the build ended, in UTC, such as 2026-12-01T10:00:00Z.
    """
    repository = environment.get("LETHE_REPOSITORY", listing.REPOSITORY)
    commit = listing.git("rev-parse", "HEAD")
    image_builder = environment["LETHE_IMAGE_BUILDER"]
    metadata = {"startedOn": environment["LETHE_RELEASE_STARTED"], "finishedOn": finished}
    if "GITHUB_WORKFLOW_REF" in environment:
        builder = f"{environment['GITHUB_SERVER_URL']}/{environment['GITHUB_WORKFLOW_REF']}"
        run = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}/attempts/{GITHUB_RUN_ATTEMPT}"
        metadata = {"invocationId": run.format_map(environment), **metadata}
    else:
        builder = f"{repository}/blob/{commit}/dev/release.sh"
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "repository": repository,
                "ref": environment.get("GITHUB_REF", commit),
                "command": ["make", "release"],
            },
            "internalParameters": {"imageBuilder": image_builder},
            "resolvedDependencies": [
                {"uri": f"git+{repository}", "digest": {"gitCommit": commit}},
                *(_file(path) for path in LOCKS),
                *(_base_images() if image_builder == "docker" else ()),
            ],
        },
        "runDetails": {"builder": {"id": builder}, "metadata": metadata},
    }


def statement(sums: str, predicate: Mapping[str, Any]) -> dict[str, Any]:
    """The statement about the files of a list of checksums."""
    pairs = [line.split(maxsplit=1) for line in sums.splitlines()]
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for digest, name in pairs],
        "predicateType": PREDICATE,
        "predicate": predicate,
    }


def _file(path: str) -> dict[str, Any]:
    return {"name": path, "digest": {"sha256": hashlib.sha256((listing.ROOT / path).read_bytes()).hexdigest()}}


def _base_images() -> list[dict[str, Any]]:
    """The images on which Docker builds those of the release. Another builder makes its base from Debian's packages."""
    text = (listing.ROOT / "operator/Dockerfile").read_text() + (listing.ROOT / "spark_apps/Dockerfile").read_text()
    found = dict.fromkeys(re.findall(r"([\w./:-]+)@sha256:([0-9a-f]{64})", text))
    return [{"uri": f"docker://{name}", "digest": {"sha256": digest}} for name, digest in found]


def write(folder: Path) -> None:
    """Write the statement about the files of a folder."""
    finished = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    made = statement((folder / "SHA256SUMS").read_text(), predicate(os.environ, finished))
    (folder / "provenance.json").write_text(listing.as_json(made))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
