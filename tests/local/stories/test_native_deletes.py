"""tests/cluster/test_native_deletes.py on `lethe local`."""

import pytest

from tests.cluster.test_native_deletes import *  # noqa: F403

pytestmark = pytest.mark.long
