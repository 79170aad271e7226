"""A console on parts in memory, and a browser session without a browser."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient
from lethe_gateway.resources.following import Followers

from tests.support.gateway_parts import TOKEN, Parts

HOST = "http://localhost:8443"


@dataclass
class Session:
    """A client that logged in, and sends forms as the pages contain them."""

    parts: Parts
    client: TestClient

    def get(self, path: str, **query: Any) -> Any:
        return self.client.get(f"{HOST}{path}", params=query or None, follow_redirects=False)

    def post(self, path: str, origin: str = HOST, key: str | None = None, **fields: Any) -> Any:
        """Args:
        key: The form key; None: that of the session.
        """
        key = self.form_key() if key is None else key
        data = {"form_key": key, **fields}
        return self.client.post(f"{HOST}{path}", data=data, headers={"Origin": origin}, follow_redirects=False)

    def form_key(self) -> str:
        """The page of the search has it too, and is made faster than the overview."""
        found = re.search(r'name="form_key" value="(\w*)"', self.get("/console/-/search").text)
        return found.group(1) if found else ""

    def log_in(self, token: str = TOKEN, wanted: str = "") -> Any:
        """The form of the login has no key yet."""
        return self.post("/console/-/login", key="", token=token, next=wanted)


_FOLLOWERS: list[Followers] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """What sessions follow ends with the test. The next request of a session that others use follows it again."""
    yield
    for followers in _FOLLOWERS:
        followers.close()


def a_session(parts: Parts, logged_in: bool = True) -> Session:
    client = parts.client(token="")
    _FOLLOWERS.append(client.app.state.services.followers)  # type: ignore[attr-defined]
    session = Session(parts, client)
    if logged_in:
        assert session.log_in().status_code == 303
    return session


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def session(parts: Parts) -> Session:
    return a_session(parts)
