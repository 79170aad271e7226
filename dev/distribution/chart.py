"""Package the chart as it is released: python -m dev.distribution.chart FOLDER

The copy that is packaged has annotations for Artifact Hub that depend on the version, besides those of Chart.yaml:
https://artifacthub.io/docs/topics/annotations/helm
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dev import release
from dev.distribution import listing

PREFIX = "artifacthub.io/"
PICTURES = {
    "The console: what needs attention": "console-overview.png",
    "A Dataset": "console-dataset.png",
    "A batch and its history": "console-batch.png",
    "The plan of a Restatement": "console-plan.png",
}
RAW = "https://raw.githubusercontent.com/lethe-lake/lethe/{ref}/docs/images/{picture}"


def annotations() -> dict[str, str]:
    """The annotations that depend on the version. All values are text; those that are not one word are YAML."""
    changes = listing.changes(release.section()[1])
    found = {
        "changes": changes,
        "crds": listing.definitions(),
        "crdsExamples": listing.examples(),
        "images": [{"name": name, "image": image} for name, image in listing.images().items()],
        "screenshots": [{"title": t, "url": RAW.format(ref=listing.ref(), picture=p)} for t, p in PICTURES.items()],
    }
    flags = {
        "containsSecurityUpdates": any(change["kind"] == "security" for change in changes),
        "prerelease": "-" in release.version(),
    }
    return {PREFIX + name: listing.as_yaml(value) for name, value in found.items()} | {
        PREFIX + name: str(value).lower() for name, value in flags.items()
    }


def annotated() -> str:
    """The text of Chart.yaml with all annotations."""
    metadata = listing.chart()
    metadata["annotations"] |= annotations()
    return listing.as_yaml(metadata)


def package(folder: Path) -> None:
    """Write the chart's archive into a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "lethe"
        shutil.copytree(listing.CHART, copy)  # follows the link to crds/
        shutil.copy(listing.ROOT / "LICENSE", copy)
        (copy / "Chart.yaml").write_text(annotated())
        readme = (copy / "README.md").read_text()
        (copy / "README.md").write_text(readme.replace("](../../", f"]({listing.SOURCES.format(ref=listing.ref())}"))
        lint = ["helm", "lint", "--strict", "--quiet", "--namespace", "lethe-system", copy]
        subprocess.run(lint, check=True)
        subprocess.run(["helm", "package", copy, "--destination", folder], check=True)


if __name__ == "__main__":
    package(Path(sys.argv[1]))
