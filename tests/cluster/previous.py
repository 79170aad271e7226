"""The previous version of Lethe, for tests of upgrades: its code from the history, and its images. I/O only."""

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.cluster.operators import ROOT

# dev/images.sh reads this line.
PREVIOUS = "1fdacf08b299c13eab7d01ad2327bf201e5450d7"


def unpack(folder: Path) -> Path:
    """Put the code and the chart of the previous version into a folder. Fails the test if the history does not have it."""
    asked = ["git", "-C", str(ROOT), "archive", PREVIOUS, "operator", "spark_apps", "crds", "helm"]
    done = subprocess.run(asked, capture_output=True)
    if done.returncode != 0:
        pytest.fail(
            f"this checkout has no history with the commit {PREVIOUS[:8]}: git fetch --unshallow", pytrace=False
        )
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def images() -> dict[str, str]:
    """The value `image` of the chart, for the previous version. Fails the test if the images are not there."""
    found = {name: os.environ.get(f"LETHE_PREVIOUS_{name.upper()}_IMAGE", "") for name in ("operator", "spark")}
    if not all(found.values()):
        pytest.fail('the images of the previous version are not there: eval "$(make -s test-previous)"', pytrace=False)
    return found
