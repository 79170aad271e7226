"""`python -m lethe_spark.committer`: starts the JVM and serves the mailbox until SIGTERM. Exit code 0 then, 1 if it broke."""

import logging
import os
import sys

from lethe.base.errors import EXIT_INPUT, InputError

from lethe_spark.committer.serve import BROKEN, Committer, Settings, end
from lethe_spark.jvm.standalone_jvm import HEAP, SmallJvm
from lethe_spark.run.launching import launch_confs
from lethe_spark.run.redact import log_to_stderr

log = logging.getLogger(__name__)


def main() -> None:
    formatter = log_to_stderr()
    try:
        settings = Settings.of(os.environ)
    except InputError as e:
        print(e, file=sys.stderr)
        end(e.message, EXIT_INPUT)
        return
    try:
        jvm = SmallJvm.start(launch_confs({}, os.environ), os.environ.get("LETHE_COMMITTER_HEAP") or HEAP)
        Committer(settings, jvm, formatter).run()
    except Exception as e:
        log.error("%s", type(e).__name__, exc_info=e)
        end("it could not start", BROKEN)
    end("asked to", 0)


if __name__ == "__main__":
    main()
