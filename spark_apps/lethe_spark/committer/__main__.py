"""`python -m lethe_spark.committer`: start the JVM and serve the mailbox until SIGTERM (exit code 0) or a failure (1)."""

import logging
import os
import sys

from lethe import process

process.prepare()

from lethe import tracing  # noqa: E402
from lethe.base.errors import EXIT_INPUT, InputError  # noqa: E402
from lethe.decoder.process import prepare  # noqa: E402

from lethe_spark.committer.serve import BROKEN, CommitterProcess, ServeSettings, end  # noqa: E402
from lethe_spark.jvm.standalone_jvm import HEAP, SmallJvm  # noqa: E402
from lethe_spark.run.launching import launch_confs  # noqa: E402
from lethe_spark.run.redact import forbid_core_dumps, log_to_stderr  # noqa: E402

log = logging.getLogger(__name__)


def main() -> None:
    """Serve the mailbox until SIGTERM or a failure, then end the process at once, without waiting for its threads."""
    forbid_core_dumps()
    formatter = log_to_stderr()
    tracing.start("lethe-committer")
    try:
        settings = ServeSettings.of(os.environ)
    except InputError as e:
        print(e, file=sys.stderr)
        end(e.message, EXIT_INPUT)
        return
    try:
        prepare("lethe.ingest.registrable")
        jvm = SmallJvm.start(launch_confs({}, os.environ), os.environ.get("LETHE_COMMITTER_HEAP") or HEAP)
        CommitterProcess(settings, jvm, formatter).run()
    except Exception as e:
        log.error("%s", type(e).__name__, exc_info=e)
        end("the committer could not start", BROKEN)
    end("SIGTERM", 0)


if __name__ == "__main__":
    main()
