"""A watch never gives up."""

from collections.abc import Iterable
from itertools import islice

from lethe_operator.cluster.watching import BACK_OFF_SECONDS, LONGEST_BACK_OFF_SECONDS, kopf_settings


def test_a_watch_whose_requests_fail_is_tried_again_for_ever() -> None:
    """kopf ends it after the last pause, and such a namespace would be deaf until the next restart."""
    pauses = kopf_settings("committer").networking.error_backoffs
    assert isinstance(pauses, Iterable)

    for _ in range(2):  # each request begins from the start
        first = list(islice(pauses, 100))
        assert first == [*BACK_OFF_SECONDS, *[LONGEST_BACK_OFF_SECONDS] * (100 - len(BACK_OFF_SECONDS))]
