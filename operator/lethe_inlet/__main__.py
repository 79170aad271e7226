"""`python -m lethe_inlet`: read the topics of a namespace's Datasets until SIGTERM (exit code 0) or a failure (1)."""

import logging
import os
import signal
import sys
import threading

from lethe import logs
from lethe.base.errors import LetheError
from lethe.kube import KubeError
from lethe.version import version
from lethe_operator.cluster import client

from lethe_inlet.serving import LOOK_SECONDS, Hangs, InletMetrics, Serving
from lethe_inlet.settings import InvalidInletSettings, from_environment, read_clusters

log = logging.getLogger("lethe_inlet")


def main() -> int:
    """Read until SIGINT or SIGTERM; return 0, or 1 if a setting or the clusters file is invalid or a source hangs."""
    try:
        settings = from_environment(os.environ)
        logs.to_stderr(settings.log_level, settings.log_format)
        for verbose in ("botocore", "urllib3", "pyiceberg"):
            logging.getLogger(verbose).setLevel(logging.WARNING)
        read_clusters(settings.clusters_file)
    except (InvalidInletSettings, LetheError) as e:
        print(f"lethe-inlet: {e}", file=sys.stderr)
        return 1
    log.info("version %s, namespace %s", version(), settings.namespace)
    leave = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: leave.set())
    serving = Serving(client.connect(), settings.namespace, lambda: read_clusters(settings.clusters_file))
    InletMetrics(serving.sources).serve(settings.metrics_port)
    while not leave.is_set():
        try:
            serving.look()
        except KubeError as e:
            log.warning("the API server cannot be asked: %s", e)
        except Hangs as e:
            log.error("%s", e)
            return 1
        leave.wait(LOOK_SECONDS)
    serving.stop()
    return 0


if __name__ == "__main__":
    # Threads of librdkafka may hang in a broker that is away.
    code = main()
    logging.shutdown()
    os._exit(code)
