"""A session for the supervisor of a warm driver, without Spark: its runs do what their table is named for.

    python fake_session.py

It answers as `lethe_spark.apps.warm_session` does, and delivers results into the ConfigMap as runs do.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from lethe.contract.result import ConsolidationResult, Phase, Progress, RunOutcome
from lethe.contract.run import RunSpec
from lethe_spark.run.handover import ANSWERS, Handover, SessionAnswer
from lethe_spark.run.kube import DRIVER, PodApi, StatusConfigMap

MIB = 1024**2


def main() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    kept: list[bytes] = []
    heap = 0
    with os.fdopen(int(os.environ[ANSWERS]), "w", buffering=1) as answers:
        print(SessionAnswer(ready=True).line(), file=answers)
        for line in sys.stdin:
            run = Handover.of(line)
            spec = RunSpec.model_validate_json(Path(run.run_file).read_text())
            act = spec.table.name.split(".")[-1]
            delivered = True
            if act == "exits":
                os._exit(7)
            if act == "hangs":
                subprocess.Popen(["sleep", "600"])
                time.sleep(600)
            if act == "waits":
                Path(os.environ["TEST_SIGNS"], run.run_id).touch()
                assert stopped.wait(60), "nobody stopped it"
                deliver(run, spec, RunOutcome.FAILED, "Cancelled")
            elif act == "forgets":
                delivered = False
            else:
                if act == "writes":
                    Path(os.environ["TMPDIR"], "large").write_bytes(bytes(40 * MIB))
                    time.sleep(60)
                if act == "allocates":
                    kept.append(os.urandom(200 * MIB))
                    time.sleep(60)
                if act == "leaks":
                    heap = 900
                deliver(run, spec, RunOutcome.COMMITTED)
            print(SessionAnswer(ready=False, delivered=delivered).line(), file=answers)
            if stopped.is_set():
                os._exit(0)
            print(SessionAnswer(ready=True, heap_used=heap, heap_max=1000).line(), file=answers)
    Path(os.environ["TEST_SIGNS"], f"{os.getpid()}.ended").touch()


def deliver(run: Handover, spec: RunSpec, outcome: RunOutcome, reason: str = "") -> None:
    api = PodApi.from_environment(os.environ, DRIVER)
    assert api is not None
    now = datetime.now(UTC)
    result = ConsolidationResult(
        run_id=run.run_id,
        family=spec.family,
        attempt=run.attempt,
        outcome=outcome,
        reason=reason,
        message=json.dumps({"session": os.getpid(), "folder": run.folder}),
        finished_time=now,
    )
    phase = Phase.FAILED if reason else Phase.SUCCEEDED
    progress = Progress(run_id=run.run_id, attempt=run.attempt, phase=phase, updated_time=now)
    documents = {"result.json": result.to_json(), "progress.json": progress.to_json()}
    StatusConfigMap(api, run.config_map, run.prefix).put_all(documents)


if __name__ == "__main__":
    main()
