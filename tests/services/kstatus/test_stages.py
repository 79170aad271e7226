"""What Flux makes of each resource in each of its stages, by the library that Flux uses (dev/kstatus)."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.stages import Stage, stages

STAGES = stages()


def program() -> str:
    cache = os.environ.get("LETHE_CACHE", Path("~/.cache/lethe").expanduser())
    found = Path(cache, "bin/kstatus")
    assert found.exists(), "kstatus is not there: run `dev/tools.sh kstatus`"
    return str(found)


def kstatus(resources: Sequence[Mapping[str, Any]]) -> list[str]:
    """The status of each resource: InProgress, Current, Failed or Terminating."""
    done = subprocess.run([program()], input=json.dumps(resources), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def whole(stage: Stage, **metadata: Any) -> dict[str, Any]:
    """The resource as the API server returns it."""
    named = {"name": "one", "namespace": "ns", "generation": 1, **metadata}
    return {"apiVersion": "lethe.dev/v1beta1", "kind": stage.kind, "metadata": named, "status": stage.status}


def test_each_stage_has_the_kstatus_that_tools_expect() -> None:
    found = dict(zip(map(str, STAGES), kstatus([whole(s) for s in STAGES]), strict=True))

    assert found == {str(s): s.kstatus for s in STAGES}
    assert set(found.values()) == {"InProgress", "Current", "Failed"}


def test_without_the_default_status_a_new_resource_would_count_as_current() -> None:
    """There may be thousands before it."""
    new = [s for s in STAGES if "nobody" in s.name]

    assert kstatus([{**whole(s), "status": {}} for s in new]) == ["Current"] * 3
    assert kstatus([whole(s) for s in new]) == ["InProgress"] * 3


def test_an_edit_that_was_not_observed_yet_is_in_progress() -> None:
    assert set(kstatus([whole(s, generation=2) for s in STAGES])) == {"InProgress"}
