"""tests/cluster/test_vacuum_policy.py on `lethe local`."""

import pytest

from tests.cluster.test_vacuum_policy import *  # noqa: F403

pytestmark = pytest.mark.long
