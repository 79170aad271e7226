"""Download the jars of a scope into a folder: python -m lethe.jars FOLDER [--scope image|local|test|bench] [--list FILE].

For builds: it needs only the standard library and this package. A jar that exists with the right checksum is not downloaded
again. Other versions of a jar are removed. MAVEN_REPO sets another repository, such as a mirror. SSL_CERT_FILE sets the CA bundle
of a TLS-inspecting proxy.
"""

import argparse
import os
import sys
from pathlib import Path

from lethe.jars.download import (
    LIST,
    DownloadFailed,
    JarScope,
    download,
    listed,
    remove_other_versions,
    repository,
    wrong,
)


def main() -> None:
    """Download jars that are missing or have a wrong checksum, remove other versions, and print each change.

    Raises:
        SystemExit: A jar cannot be downloaded, or the arguments are wrong.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scope", choices=[s.value for s in JarScope], default=JarScope.IMAGE.value)
    parser.add_argument("--list", type=Path, default=LIST, help="another list of jars")
    arguments = parser.parse_args()
    jars = listed(JarScope(arguments.scope), arguments.list)
    for jar in wrong(jars, arguments.folder):
        print(f"downloading {jar.name}", file=sys.stderr, flush=True)
        try:
            download((jar,), arguments.folder, repository(os.environ))
        except DownloadFailed as error:
            raise SystemExit(str(error)) from error
    for path in remove_other_versions(jars, arguments.folder):
        print(f"removed {path.name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
