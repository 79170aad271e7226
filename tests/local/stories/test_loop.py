"""tests/cluster/test_loop.py on `lethe local`."""

import pytest

from tests.cluster.test_loop import *  # noqa: F403

pytestmark = pytest.mark.long
