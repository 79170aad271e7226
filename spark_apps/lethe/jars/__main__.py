"""Download the jars of a scope into a folder: python -m lethe.jars FOLDER [--scope image|local|test|bench | --store gcs|azure].

With a store, these are the jars that its tables need besides, and the others stay.

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
    Store,
    download,
    listed,
    of_store,
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
    parser.add_argument("--store", choices=[s.value for s in Store], help="the client libraries of a cloud")
    parser.add_argument("--list", type=Path, default=LIST, help="another list of jars")
    arguments = parser.parse_args()
    if arguments.store:
        jars = of_store(Store(arguments.store), arguments.list)
    else:
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
