"""`python -m lethe_gateway`: in a pod of the cluster, or outside with a kubeconfig."""

import os
import sys
from typing import Any


class _WithoutPandas:
    """pyarrow imports pandas where it is installed, which costs 40 MiB and is of no use here."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, _WithoutPandas())
# The system's allocator returns the memory that a refresh of an index has used.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

from lethe_gateway.main import main  # noqa: E402
from lethe_gateway.settings import InvalidSettings  # noqa: E402

if __name__ == "__main__":
    try:
        main()
    except InvalidSettings as e:
        sys.exit(f"lethe-gateway: {e}")
