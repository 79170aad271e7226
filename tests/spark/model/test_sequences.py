"""Sequences of acts that meet in ways which short random walks seldom take."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lethe.files import native_deletes
from pyspark.sql import SparkSession

from tests.model.acts import (
    Append,
    Change,
    Erase,
    EraseRows,
    Group,
    Register,
    Revert,
    Setup,
    Undo,
    Vacuum,
)
from tests.model.foreign_acts import (
    Expire,
    ForeignAppend,
    ForeignColumn,
    ForeignDelete,
    ForeignRepartition,
    ForeignTag,
    Rename,
    Rollback,
)
from tests.spark.model.play import play
from tests.spark.model.world import World
from tests.support.lake import Lake

Begin = Callable[..., World]


@pytest.fixture
def begin(spark: SparkSession, lake: Lake) -> Iterator[Begin]:
    worlds: list[World] = []

    def made(*setup: Any) -> World:
        worlds.append(World.begin(spark, lake, Setup(*setup)))
        return worlds[-1]

    yield made
    for world in worlds:
        world.end()


@pytest.mark.parametrize(
    "setup",
    [
        pytest.param((2,), id="v2", marks=pytest.mark.long),
        pytest.param((3,), id="v3", marks=pytest.mark.long),
        pytest.param((3, "Auto"), id="vectors"),
        pytest.param((2, "Auto"), id="positions", marks=pytest.mark.long),
    ],
)
def test_the_table_and_a_plain_model_of_it_agree_on_erasures_and_other_writers(
    begin: Begin, setup: tuple[Any, ...]
) -> None:
    """And of the rows of an erasure that is verified, no file holds any byte."""
    played = play(
        begin(*setup),
        Append(("B", "A", "C")),
        Revert(("B", "Y")),
        ForeignAppend(("A", None, "B", "x"), day=3),
        Undo(Revert(("B", "Y"))),
        EraseRows(("B~1100", "A~1001")),
        Group((Revert(("Z",)), Undo(Revert(("Z",))))),  # both after the Erase, in one commit
        Change((("U", 1101), ("D", 1200)), "K"),
        Erase(("C",)),
        Vacuum(keep=1),
        Register(("R", "S")),
        Revert(("R",)),
        Undo(Revert(("R",))),
        ForeignDelete(2700),
        ForeignTag(),
        Rollback(2),
        Rename(),
        Vacuum(keep=1, care=("compact", "orphans")),
        Expire(1, "PyIceberg"),
        check_each=3,
    )

    assert played.verified


@pytest.mark.parametrize(
    "setup",
    [
        pytest.param((2,), id="v2", marks=pytest.mark.long),
        pytest.param((3, "Auto"), id="vectors", marks=pytest.mark.long),
        pytest.param((2, "Auto"), id="positions"),
    ],
)
def test_the_table_and_a_plain_model_of_it_agree_when_partition_fields_and_their_columns_come_and_go(
    begin: Begin, setup: tuple[Any, ...]
) -> None:
    play(
        begin(*setup),
        Append(("A", "B")),
        ForeignRepartition("extra"),
        ForeignAppend(("A", "B", "x", None)),
        Append(("C",)),
        Revert(("A",)),
        ForeignColumn("drop"),
        Revert(("B", "C")),
        Undo(Revert(("A",))),
        ForeignAppend(("A", "y")),
        EraseRows(("B~1100",)),
        ForeignRepartition("day"),
        Undo(Revert(("B", "C"))),
        Revert(("A",), nth=1),
        Vacuum(keep=1, care=("compact",)),
        check_each=4,
    )


def test_a_rule_that_is_broken_is_noticed(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, rows of a batch taken back could come in again by another writer, and stay."""
    monkeypatch.setattr(native_deletes, "_armed_again", lambda *_: ())

    with pytest.raises(AssertionError, match="a deleted batch has no tombstone"):
        play(begin(2), Append(("A", "B")), Revert(("A",)), Vacuum(), ForeignAppend(("A",)), Append(("C",)))
