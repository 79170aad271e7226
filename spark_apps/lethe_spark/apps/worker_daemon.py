"""The daemon that forks Spark's Python workers: `python -m lethe_spark.apps.worker_daemon pyspark.worker`. I/O.

Spark puts its Python sources as archives on the path of workers, before the installed package. Before Python 3.12 each task
searches all archives again (`importlib.invalidate_caches`), which takes a quarter of a second, as long as reading 150 small
files. This daemon removes the archives from the path, and imports the modules that tasks need once, before it forks workers. Each
worker collects garbage after each task, which takes long only for objects that it has made itself, and returns its memory:
workers of a warm driver live on, and would keep what their largest task has needed. The decoders of all workers come from one
server, which the daemon forks, too.
"""

import gc
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from os.path import isfile
from typing import Any


def without_archives(path: Sequence[str]) -> list[str]:
    """The folders of an import path."""
    return [entry for entry in path if not isfile(entry)]


def main() -> None:
    """Run Spark's daemon. The path does not change if PySpark exists only as an archive."""
    original_path = list(sys.path)
    sys.path[:] = without_archives(original_path)
    if find_spec("pyspark") is None or find_spec("py4j") is None:
        sys.path[:] = original_path
    sys.path_importer_cache.clear()
    import lethe.ingest.buffer_files
    import lethe.ingest.registrable
    import lethe.writing.tasks  # noqa: F401
    from lethe.decoder.process import fork_server

    gc.freeze()
    fork_server()  # of the processes that decode files; before there are threads
    from lethe.process import return_memory
    from pyspark import daemon

    task = daemon.worker

    def worker(*arguments: Any) -> Any:
        """Carry out a task. Spark has its result before its memory is returned."""
        try:
            return task(*arguments)
        finally:
            return_memory()

    daemon.worker = worker
    import lethe_spark.ingest  # noqa: F401 (tasks need it for their accumulators, decoders do not)

    gc.freeze()  # excludes the current objects from the garbage collections
    daemon.manager()


if __name__ == "__main__":
    main()
