"""How long a store has to keep what is written once."""

from datetime import timedelta

import pytest
from lethe.base.errors import InputError
from lethe.base.retention_lock import LockMode, Retention, parse_retention

from tests.support.builders import NOW


def test_a_retention_is_a_mode_and_days() -> None:
    kept = parse_retention("COMPLIANCE:3650")

    assert kept == Retention(LockMode.COMPLIANCE, 3650)
    assert (str(kept), kept.until(NOW)) == ("COMPLIANCE:3650", NOW + timedelta(days=3650))
    assert parse_retention("") is None


@pytest.mark.parametrize("text", ["compliance:1", "COMPLIANCE", "COMPLIANCE:", "GOVERNANCE:0", "GOVERNANCE:-1", ":7"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_retention(text)

    assert (refused.value.reason, text in refused.value.message) == ("InvalidRetention", True)
