"""`python -m lethe_gateway`: in a pod of the cluster, or outside with a kubeconfig."""

import sys

from lethe import process

process.prepare()

from lethe.base.errors import InvalidSettings  # noqa: E402

from lethe_gateway.main import main  # noqa: E402

if __name__ == "__main__":
    try:
        main()
    except InvalidSettings as e:
        sys.exit(f"lethe-gateway: {e}")
