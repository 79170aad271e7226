"""tests/cluster/test_maintenance.py on `lethe local`."""

import pytest

from tests.cluster.test_maintenance import *

pytestmark = pytest.mark.long
