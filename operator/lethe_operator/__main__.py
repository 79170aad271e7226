"""`python -m lethe_operator`: in a pod of the cluster, or outside with a kubeconfig."""

import sys

from lethe_operator.main import main
from lethe_operator.settings import InvalidSettings

if __name__ == "__main__":
    try:
        main()
    except InvalidSettings as e:
        sys.exit(f"lethe-operator: {e}")
