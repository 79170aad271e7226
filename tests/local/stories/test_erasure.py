"""tests/cluster/test_erasure.py on `lethe local`."""

import pytest

from tests.cluster.test_erasure import *  # noqa: F403

pytestmark = pytest.mark.long
