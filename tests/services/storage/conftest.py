"""An empty place in a store of each kind, and clients that repeat a request without a pause."""

import uuid
from datetime import timedelta

import pytest
from botocore.retries.standard import ExponentialBackoff
from lethe.storage import clients
from lethe.uri import Backend

from tests.support.servers.stores import Place, Stores

AT_ONCE = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=10), "base": 2}


@pytest.fixture(params=Backend)
def place(request: pytest.FixtureRequest, stores: Stores) -> Place:
    return stores[request.param].place(uuid.uuid4().hex)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_BACKOFF", AT_ONCE)
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.0)
