"""An empty place in a store of each kind."""

import uuid

import pytest
from lethe.uri import Backend

from tests.support.servers.stores import Place, Stores


@pytest.fixture(params=Backend)
def place(request: pytest.FixtureRequest, stores: Stores) -> Place:
    return stores[request.param].place(uuid.uuid4().hex)
