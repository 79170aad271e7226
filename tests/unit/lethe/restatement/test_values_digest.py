"""Whether a request that comes again means the same values, without anybody keeping the values."""

import itertools
from datetime import timedelta

import pytest
from lethe.base.errors import InputError
from lethe.contract.run import RestatementRequest, RowsRef
from lethe.restatement.plan import AlreadyDone, ErasedRows, PlanScope, Restated, plan_restatement
from lethe.restatement.record import values_digest

from tests.support.builders import NOW, RUN, a_ledger, a_request

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def an_erase(values: bytes = b"N1\nN2\n", key: bytes = KEY, days: int = 0) -> RestatementRequest:
    rows = RowsRef(column="tailnum", values_file="/values", values_digest=values_digest(values, key))
    return a_request("erase", "Erase", batch_ids=(), rows=rows, creation_time=NOW + timedelta(days=days))


def planned(first: RestatementRequest, second: RestatementRequest) -> AlreadyDone | Restated:
    """The second one, on the ledger that the first one leaves."""
    done = plan_restatement(a_ledger(), first, PlanScope(RUN, NOW, 7), erased=ErasedRows(2, 8))
    assert isinstance(done, Restated)
    return plan_restatement(a_ledger(requests=done.delta.set_requests), second, PlanScope(RUN, NOW, 7))


def test_the_digest_is_of_the_set_of_lines_and_of_nothing_without_the_key() -> None:
    same = (b"a\nb\n", b"b\na", b"a\r\n\r\nb\r\na\n", b"\xef\xbb\xbfa\nb")
    other = (b"a\n", b"a\nb\nc\n", b"a \nb\n", b"ab\n")
    assert len({values_digest(v, KEY) for v in same}) == 1
    assert len({values_digest(v, k) for v, k in itertools.product((same[0], *other), (KEY, OTHER_KEY))}) == 10
    assert [values_digest(b"a\n", key) for key in (b"", b"short")] == ["", ""]


def test_a_repeated_request_with_the_same_values_gets_the_result() -> None:
    found = planned(an_erase(), an_erase(b"N2\nN1", days=9))

    assert isinstance(found, AlreadyDone)
    assert (found.result.rows_erased, found.result.values_digest) == (2, None)


def test_an_attempt_that_is_made_again_for_the_same_object_is_not_compared() -> None:
    """It was carried out; whoever changes the Secret after that has not changed what was asked for."""
    assert isinstance(planned(an_erase(), an_erase(b"N3\n")), AlreadyDone)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (an_erase(), an_erase(b"N3\n", days=9), "ValuesChanged"),
        (an_erase(), an_erase(key=OTHER_KEY, days=9), "ValuesNotComparable"),
        (an_erase(), an_erase(key=b"", days=9), "ValuesNotComparable"),
        (an_erase(key=b""), an_erase(days=9), "ValuesNotComparable"),
        (an_erase(key=b""), an_erase(key=b"", days=9), "ValuesNotComparable"),
    ],
)
def test_a_request_with_other_values_does_not_get_the_result(
    first: RestatementRequest, second: RestatementRequest, reason: str
) -> None:
    with pytest.raises(InputError, match=r"Nothing was (searched or )?erased") as refused:
        planned(first, second)

    assert refused.value.reason == reason
    assert "N3" not in str(refused.value)
