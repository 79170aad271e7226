import sys

from lethe.base.turns import TURN_SECONDS, take_short_turns


def test_turns_are_short() -> None:
    before = sys.getswitchinterval()
    try:
        take_short_turns()
        assert sys.getswitchinterval() == TURN_SECONDS < before
    finally:
        sys.setswitchinterval(before)
