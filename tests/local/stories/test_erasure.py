"""tests/cluster/test_erasure.py on `lethe local`."""

import pytest

from tests.cluster import test_erasure as on_a_cluster
from tests.cluster.test_erasure import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of signatures is the chart's."""
    monkeypatch.setattr(on_a_cluster, "check_signature", lambda *_: None)
