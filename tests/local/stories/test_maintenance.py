"""tests/cluster/test_maintenance.py on `lethe local`."""

import pytest

from tests.cluster.test_maintenance import *  # noqa: F403

pytestmark = pytest.mark.long
