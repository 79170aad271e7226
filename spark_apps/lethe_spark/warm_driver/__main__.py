"""`python -m lethe_spark.warm_driver [--conf k=v …]`: serve the mailbox until SIGTERM, or until no run came for the idle time.

Exit codes: 0 nothing is left to do; 1 Kubernetes restarts the process; 10 it is not in a pod.
"""

import os
import sys

from lethe.base.errors import EXIT_INPUT, InputError

from lethe_spark.run.redact import forbid_core_dumps, log_to_stderr
from lethe_spark.warm_driver.serve import WarmDriver, WarmSettings, end


def main() -> None:
    """Serve the mailbox, then end the process at once, without waiting for its threads."""
    forbid_core_dumps()
    log_to_stderr()
    try:
        settings = WarmSettings.of(os.environ)
    except InputError as e:
        print(e, file=sys.stderr)
        end(EXIT_INPUT)
        return
    end(WarmDriver(settings, sys.argv[1:]).run())


if __name__ == "__main__":
    main()
