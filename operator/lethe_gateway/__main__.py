"""`python -m lethe_gateway`: in a pod of the cluster, or outside with a kubeconfig."""

import os
import sys

# pyarrow imports pandas where it is installed, which costs 40 MiB and is of no use here.
sys.modules["pandas"] = None  # type: ignore[assignment]
# The system's allocator returns memory that a refresh of an index has used.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

from lethe_gateway.main import main  # noqa: E402
from lethe_gateway.settings import InvalidSettings  # noqa: E402

if __name__ == "__main__":
    try:
        main()
    except InvalidSettings as e:
        sys.exit(f"lethe-gateway: {e}")
