"""What Spark starts on an executor to make Python workers: `python -m lethe_spark.apps.worker_daemon pyspark.worker`.

Spark puts its own Python sources on the workers' path as archives, before the installed package, and each task looks through
all archives again (`importlib.invalidate_caches`; Python 3.12 mended that): a quarter of a second, which is as long as it
takes to read 150 small files. Here they leave the path, and what tasks import is imported once, before workers are forked.
I/O: becomes Spark's daemon, which serves until it is told to stop.
"""

import gc
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from os.path import isfile


def without_archives(path: Sequence[str]) -> list[str]:
    """The folders of an import path."""
    return [entry for entry in path if not isfile(entry)]


def main() -> None:
    """Serve Spark. Where its Python package is only there as an archive, the path stays as it is."""
    given = list(sys.path)
    sys.path[:] = without_archives(given)
    if find_spec("pyspark") is None or find_spec("py4j") is None:
        sys.path[:] = given
    sys.path_importer_cache.clear()
    from pyspark.daemon import manager

    import lethe_spark.ingest.buffer_files
    import lethe_spark.ingest.footers  # noqa: F401

    gc.freeze()  # what is there now is never garbage; workers collect after each task
    manager()


if __name__ == "__main__":
    main()
