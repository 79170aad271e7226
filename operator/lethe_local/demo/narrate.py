"""The output of the demos: a line for each step, a live line while it waits, and a check that can end the demo. I/O only.

Reads pages of the console as a person does, to compare their numbers. I/O.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import requests

Object = dict[str, Any]
LIVE = sys.stdout.isatty()
# Without a terminal, a line at most this often.
QUIET_SECONDS = 10


def say(text: str = "") -> None:
    print(text, flush=True)


def fail(text: str) -> None:
    end_line()
    say(f"FAILED: {text}")
    sys.exit(1)


_line_open = False


def end_line() -> None:
    global _line_open
    if _line_open:
        print("\r\033[K", end="")
        _line_open = False


@dataclass
class DemoStep:
    """One step of the demo; `done` ends it. The live line shows its seconds."""

    title: str
    look: Callable[[], "World"]
    """Reads the resources."""
    started: float = field(default_factory=time.monotonic)
    _printed: tuple[float, str] = (0.0, "")
    """When, by time.monotonic, and what."""

    def __post_init__(self) -> None:
        say(f"→ {self.title}")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def live(self, text: str) -> None:
        """Replace the live line; without a terminal, print a line from time to time."""
        global _line_open
        now = time.monotonic()
        if LIVE:
            print(f"\r\033[K    {text[:100]} · {self.seconds:.0f}s", end="", flush=True)
            _line_open = True
        elif text != self._printed[1] and now - self._printed[0] >= QUIET_SECONDS:
            say(f"    {text} · {self.seconds:.0f}s")
            self._printed = (now, text)

    def done(self, text: str) -> None:
        end_line()
        say(f"    {text} ({self.seconds:.0f}s)")

    def wait(
        self, what: str, until: Callable[["World"], bool], within_seconds: float = 300, besides: str = ""
    ) -> "World":
        """Read Lethe's resources until a condition holds. A resource that has failed ends the demo with its message.

        Args:
            besides: A reason that this step removes, so it is no failure.
        """
        while True:
            world = self.look()
            if until(world):
                return world
            if trouble := world.trouble(besides):
                fail(f"while waiting for {what}: {trouble}")
            if self.seconds > within_seconds:
                fail(
                    f"waited {within_seconds:.0f}s for {what}; the Dataset's status is\n{json.dumps(world.dataset, indent=1)}"
                )
            self.live(world.activity() or f"waiting for {what}")
            time.sleep(0.5)


@dataclass(frozen=True)
class World:
    """The statuses of Lethe's resources at one moment, by kind and name."""

    statuses: dict[tuple[str, str], Object]

    @property
    def dataset(self) -> Object:
        return self.statuses.get(("Dataset", "flights"), {})

    def restatement(self, name: str) -> Object:
        return self.statuses.get(("Restatement", name), {})

    def activity(self) -> str:
        """The state of the active run."""
        for run in self.dataset.get("runs", ()):
            if run.get("phase") not in ("Succeeded", "Failed"):
                parts = (run["kind"], run.get("phase"), run.get("progress"), run.get("message"))
                return " · ".join(str(part) for part in parts if part)
        return ""

    def trouble(self, besides: str = "") -> str:
        """What has failed or cannot go on, other than for a reason that passes."""
        for (kind, name), status in self.statuses.items():
            for one in (c for c in status.get("conditions", ()) if not besides or c["reason"] != besides):
                failed = one["type"] == "Succeeded" and one["status"] == "False" and status.get("phase") == "Failed"
                if failed or (one["type"] == "Stalled" and one["status"] == "True"):
                    return f"{kind} {name}: {one['reason']}: {one['message']}"
        return ""

    def finished_run(self, kind: str) -> Object | None:
        """The newest run of a kind that succeeded."""
        for run in self.dataset.get("runs", ()):
            if run["kind"] == kind and run.get("phase") == "Succeeded":
                return dict(run)
        return None


def promoted(dataset: Object) -> int:
    return int(dataset.get("batches", {}).get("promoted", 0))


def succeeded(restatement: Object, condition: str = "Succeeded") -> bool:
    return any(one["type"] == condition and one["status"] == "True" for one in restatement.get("conditions", ()))


def check(what: str, expected: int, found: int) -> None:
    """End the demo, unless both numbers are equal."""
    if expected != found:
        fail(f"{what}: expected {expected:,}, found {found:,}")


STARTS_WITHIN_SECONDS: Final = 60.0
_NUMBER: Final = r"<dt>{}</dt><dd>\s*([\d,]+)"


class Console:
    """A session. The gateway may still be starting."""

    def __init__(self, address: str, token: str, dataset: str = "/console/default/datasets/flights") -> None:
        self._address = address
        self._dataset = dataset
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy of the environment, which could read the token
        self._log_in(token)

    def number(self, label: str) -> int:
        """A number on the page of the Dataset."""
        match = re.search(_NUMBER.format(re.escape(label)), self._page(""))
        if match is None:
            fail(f"the console's page of the Dataset shows no number for {label!r}")
        assert match is not None
        return int(match.group(1).replace(",", ""))

    def history(self, batch: str) -> list[str]:
        """What happened to a batch, the oldest first."""
        page = self._page(f"/batch?id={quote(batch, safe='')}")
        return re.findall(r"<strong>(\w+)</strong>", page.partition("<h2>History</h2>")[2])

    def says(self, page: str, text: str) -> bool:
        """Whether a page of the Dataset contains a text."""
        return text in self._page(page)

    def _page(self, page: str) -> str:
        answer = self._session.get(f"{self._address}{self._dataset}{page}", timeout=30)
        if answer.status_code != 200:
            fail(f"the console answers {answer.status_code} for {page or 'the Dataset'}")
        return answer.text

    def _log_in(self, token: str) -> None:
        ends = time.monotonic() + STARTS_WITHIN_SECONDS
        while True:
            try:
                answer = self._session.post(
                    f"{self._address}/console/-/login",
                    {"token": token},
                    headers={"Origin": self._address},
                    timeout=30,
                    allow_redirects=False,
                )
                break
            except requests.ConnectionError:
                if time.monotonic() > ends:
                    fail(f"the console at {self._address} did not answer within {STARTS_WITHIN_SECONDS:.0f} s")
                time.sleep(0.1)
        if answer.status_code != 303:
            fail(f"the console answered the login with {answer.status_code}")
