"""Reads pages of the console as a person does, to compare their numbers. I/O."""

import re
import time
from typing import Final
from urllib.parse import quote

import requests

from lethe_local.demo.narrate import fail

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
        found = re.search(_NUMBER.format(re.escape(label)), self._page(""))
        if found is None:
            fail(f"the console's page of the Dataset shows no number for {label!r}")
        assert found is not None
        return int(found.group(1).replace(",", ""))

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
