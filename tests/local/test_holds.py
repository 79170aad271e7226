"""A hold as its users meet it: an Erase waits for it, says so, and goes on when it ends, without a person."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.local.lake import Lake, orders


def test_an_erase_waits_for_a_hold_and_is_verified_after_it_has_ended(lake: Lake, tmp_path: Path) -> None:
    """The filter is in the Dataset and in the documents of runs, and nowhere else."""
    mine = replace(lake, buffer=tmp_path / "buffer", manifest=tmp_path / "held.yaml")
    value = 4242424242
    mine.put("monday", 1, value)
    held = orders(mine.buffer, "held")
    mine.apply({**held, "spec": {**held["spec"], "holds": [a_hold(value, datetime(2100, 1, 1, tzinfo=UTC))]}})
    mine.wait_until("promoted", lambda: mine.promoted(1, "held"))

    def condition(type: str) -> tuple[str, str]:
        status = mine.get("restatement", "under-hold").get("status") or {}
        found = next((c for c in status.get("conditions") or () if c["type"] == type), {})
        return found.get("status", ""), found.get("reason", "")

    asked = ("erase", "held", "--column", "id", "--values", "-", "--name", "under-hold", "--evict-by-seconds", "86400")
    made = mine.lethe(*asked, told=f"{value}\n")
    assert made.returncode == 0, made.stderr
    mine.wait_until("held", lambda: condition("Succeeded") == ("Unknown", "LegalHold"))
    why, in_force = mine.lethe("why", "restatement/under-hold").stdout, mine.get("dataset", "held")["status"]["holds"]
    runs = len(mine.get("dataset", "held")["status"]["runs"])

    assert "hold case-7 until 2100-01-01T00:00:00Z" in why
    assert f"{value}" not in why
    assert [(h["name"], h["active"]) for h in in_force] == [("case-7", True)]
    assert mine.ids("held") == [1, value]

    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10)
    mine.apply({**held, "spec": {**held["spec"], "holds": [a_hold(value, ends)]}})
    mine.wait_until("erased", lambda: condition("Erased")[0] == "True")

    status = mine.get("dataset", "held")["status"]
    erased = mine.get("restatement", "under-hold")["status"]
    (committed,) = [c for c in erased["conditions"] if c["type"] == "Succeeded"]
    assert datetime.fromisoformat(committed["lastTransitionTime"]) >= ends
    assert (mine.ids("held"), erased["result"]["rowsErased"]) == ([1], 1)
    assert [(h["active"], h["message"].startswith("It ended at")) for h in status["holds"]] == [(False, True)]
    assert runs == 2  # the consolidation, and the one run that found the covered row
    mine.done("delete", "restatement", "under-hold")
    mine.done("delete", "dataset", "held")


def a_hold(value: int, until: datetime) -> dict[str, Any]:
    return {"name": "case-7", "filter": f"id = {value}", "until": f"{until:%Y-%m-%dT%H:%M:%SZ}"}
