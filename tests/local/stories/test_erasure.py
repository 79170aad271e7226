"""tests/cluster/test_erasure.py on `lethe local`."""

import pytest

from tests.cluster import test_erasure as on_a_cluster
from tests.cluster.test_erasure import *  # noqa: F403

pytestmark = pytest.mark.long

# It checks a signature, and the key is the chart's.
del globals()[on_a_cluster.test_it_is_erased_by_itself_when_the_tag_is_gone.__name__]
