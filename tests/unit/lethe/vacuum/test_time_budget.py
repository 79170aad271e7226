"""A run begins nothing behind the limits that it was given."""

from datetime import timedelta

import pytest
from lethe.contract.run import VacuumSpec
from lethe.vacuum.plan import out_of_time

from tests.support.builders import NOW, ago


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({}, ""),
        ({"max_seconds": 61, "stop_by": ago(seconds=-1)}, ""),
        ({"max_seconds": 60}, "MaxRunSeconds"),
        ({"max_seconds": 0}, "MaxRunSeconds"),
        ({"stop_by": NOW}, "WindowClosed"),
        ({"max_seconds": 60, "stop_by": NOW}, "WindowClosed"),
    ],
)
def test_the_end_of_the_window_and_the_end_of_the_time_budget_have_different_reasons(
    limits: dict[str, object], why: str
) -> None:
    spec = VacuumSpec.model_validate({"policy": "air/nightly", **limits})

    assert out_of_time(spec, timedelta(seconds=60), NOW) == why
