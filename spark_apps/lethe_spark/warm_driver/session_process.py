"""The process of a Spark session, as its supervisor sees it: starts it, hands it runs, hears its answers, ends it. I/O."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lethe_spark.run.handover import ANSWERS, Handover, SessionAnswer
from lethe_spark.warm_driver.delivery import SessionUse, measured, processes

log = logging.getLogger(__name__)

COMMAND: Final = (sys.executable, "-m", "lethe_spark.apps.warm_session")
KILL_SECONDS: Final = 10.0


@dataclass
class SessionProcess:
    """A session, its Python workers and its JVM. They are one session in the sense of setsid, so none outlives it."""

    process: "subprocess.Popen[str]"
    folder: Path
    """Everything that it writes to the local disk is below this folder."""
    answers: deque[SessionAnswer | None] = field(default_factory=deque)
    """Its answers that were not read yet; None: it has ended."""
    runs: int = 0
    """Number of runs so far."""

    @classmethod
    def start(
        cls, command: Sequence[str], folder: Path, environ: Mapping[str, str], on_answer: Callable[[], object]
    ) -> "SessionProcess":
        """Start it in an empty folder. It answers when it is ready.

        Args:
            on_answer: Called after each answer, in another thread.
        """
        shutil.rmtree(folder, ignore_errors=True)
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                command,
                env={**environ, ANSWERS: str(writing), "SPARK_LOCAL_DIRS": str(folder), "TMPDIR": str(temporary)},
                stdin=subprocess.PIPE,
                stdout=sys.stderr,
                pass_fds=[writing],
                start_new_session=True,
                text=True,
            )
        finally:
            os.close(writing)
        started = cls(process, folder)
        threading.Thread(target=started._hear, args=(reading, on_answer), name="lethe-session", daemon=True).start()
        return started

    def hand_over(self, run: Handover) -> None:
        """Hand the work over.

        Raises:
            OSError: It has ended.
        """
        assert self.process.stdin is not None
        self.runs += 1
        print(run.line(), file=self.process.stdin, flush=True)

    def use(self, seconds: float) -> SessionUse:
        """What it uses, `seconds` after its run began."""
        return measured(seconds, self.process.pid, self.folder)

    def terminate(self) -> None:
        """Ask the run to stop at its next step, and the process to end after it."""
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> int:
        """End all its processes now, and remove its folder.

        Returns:
            The exit code.
        """
        for pid in processes(self.process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        code = self.process.wait(timeout=KILL_SECONDS)
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code

    def _hear(self, pipe: int, on_answer: Callable[[], object]) -> None:
        with os.fdopen(pipe) as lines:
            for line in lines:
                self.answers.append(SessionAnswer.of(line))
                on_answer()
        self.answers.append(None)
        on_answer()
