"""tests/cluster/test_bad_input.py on `lethe local`."""

import pytest

from tests.cluster import test_bad_input as on_a_cluster
from tests.cluster.test_bad_input import *  # noqa: F403

pytestmark = pytest.mark.long

# Here nothing limits the memory of a process, and the operator has no Deployment.
for name in (
    on_a_cluster.test_a_driver_over_its_memory_limit_is_reported.__name__,
    on_a_cluster.test_deleting_never_waits_for_the_operator.__name__,
):
    del globals()[name]
