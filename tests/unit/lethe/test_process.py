"""What the processes do before their imports."""

import subprocess
import sys

from lethe.process import TURN_SECONDS

PROGRAM = """
import sys
from lethe import process
process.prepare()
import pyarrow
table = pyarrow.table({"a": [1]})
assert table.column("a").to_pylist() == [1]
print(sys.getswitchinterval(), pyarrow.default_memory_pool().backend_name, "pandas" in sys.modules)
"""


def test_threads_take_short_turns_and_arrow_uses_the_allocator_of_the_system_and_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)

    assert done.stdout.split() == [str(TURN_SECONDS), "system", "False"], done.stderr
