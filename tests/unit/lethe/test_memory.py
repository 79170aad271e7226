"""What the processes do before their imports."""

import subprocess
import sys

PROGRAM = """
import sys
from lethe import memory
memory.prepare()
import pyarrow
table = pyarrow.table({"a": [1]})
assert table.column("a").to_pylist() == [1]
print(pyarrow.default_memory_pool().backend_name, "pandas" in sys.modules)
"""


def test_arrow_uses_the_allocator_of_the_system_and_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)

    assert done.stdout.split() == ["system", "False"], done.stderr
