"""Write what Artifact Hub reads of the chart's repository: python -m dev.distribution.artifacthub FOLDER

The artifact is pushed beside the chart with the tag "artifacthub.io": https://artifacthub.io/docs/topics/repositories/helm-charts/#oci-support
"""

import sys
from pathlib import Path

from dev.distribution import listing, oci

METADATA = listing.ROOT / "dev/distribution/artifacthub-repo.yml"
CONFIG = "application/vnd.cncf.artifacthub.config.v1+yaml"
LAYER = "application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml"


def write(folder: Path) -> None:
    """Write the artifact into a folder, as an archive."""
    title = {"org.opencontainers.image.title": METADATA.name}
    layer = oci.Blob(LAYER, METADATA.read_bytes(), title)
    created = {"org.opencontainers.image.created": listing.commit_time()}
    oci.write_artifact(folder / "artifacthub-repo.tar", oci.Blob(CONFIG, b""), [layer], created)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
