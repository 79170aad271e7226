"""tests/cluster/test_native_deletes.py on `lethe local`."""

import pytest

from tests.cluster import test_native_deletes as on_a_cluster
from tests.cluster.test_native_deletes import *  # noqa: F403

pytestmark = pytest.mark.long

# They read with a Spark in a pod.
for name in (
    on_a_cluster.test_deletion_vectors_hide_a_revert_from_all_readers.__name__,
    on_a_cluster.test_position_deletes_hide_a_revert_from_all_readers_on_version_2.__name__,
):
    del globals()[name]
