"""The model of a table under chaos."""

from collections import Counter

import pytest

from tests.cluster.chaos.acts import Act, Batch, Change, Erase, EraseRows, Put, Replay, Revert, Undo, Vacuum
from tests.cluster.chaos.model import Model

A, B, C = Batch("a", 0, 3, 1), Batch("b", 10, 2, 1), Batch("c", 20, 1, 2)
REVERT = Revert("r", ("a",))


def after(*acts: Act) -> Model:
    model = Model()
    for act in (Put(A), Put(B), *acts):
        model.announce((act,))
        model.carry_out(act)
    return model


def rows(*pairs: tuple[str, int]) -> Counter[tuple[str, int]]:
    return Counter(pairs)


ALL_OF_A, ALL_OF_B = [("a", 0), ("a", 1), ("a", 2)], [("b", 10), ("b", 11)]


@pytest.mark.parametrize(
    ("acts", "wanted"),
    [
        ([], rows(*ALL_OF_A, *ALL_OF_B)),
        ([REVERT], rows(*ALL_OF_B)),
        ([REVERT, Undo("u", REVERT)], rows(*ALL_OF_A, *ALL_OF_B)),
        ([Erase("e", ("a",))], rows(*ALL_OF_B)),
        ([EraseRows("e", (1, 11))], rows(("a", 0), ("a", 2), ("b", 10))),
        ([Replay("p", ("a", "b"), C)], rows(("c", 20))),
        ([Change("k", "c", (0, 10), (1,))], rows(("c", 0), ("c", 10), ("a", 2), ("b", 11))),
        ([Vacuum("v")], rows(*ALL_OF_A, *ALL_OF_B)),
        ([EraseRows("e", (1,)), REVERT, Undo("u", REVERT)], rows(("a", 0), ("a", 2), *ALL_OF_B)),
    ],
    ids=["put", "revert", "undo", "erase", "erase rows", "replay", "change", "vacuum", "undo after an erasure"],
)
def test_the_visible_rows(acts: list[Act], wanted: Counter[tuple[str, int]]) -> None:
    assert after(*acts).rows == wanted


def test_erased_rows_are_those_that_were_visible() -> None:
    assert after(Erase("e", ("a",)), EraseRows("f", (0, 10))).erased == {*ALL_OF_A, ("b", 10)}


@pytest.mark.parametrize("purges", [Vacuum("v"), Erase("e", ("b",)), EraseRows("f", (10,))])
def test_an_undo_may_be_refused_only_once_a_vacuum_may_have_run(purges: Act) -> None:
    undo = Undo("u", REVERT)

    assert not after(REVERT).may_refuse(undo)
    assert after(REVERT, purges).may_refuse(undo)
    assert not after(REVERT, purges).may_refuse(Put(C))
