"""A Dataset whose table has a column of a type that no library here knows."""

from pathlib import Path

import pytest
from lethe_operator.dataset.observe import Sources, observe
from lethe_operator.dataset.tables import TableReader
from lethe_operator.reconcile import utc_now
from lethe_operator.resources.observed import Observation, TableView
from lethe_operator.restatement.observe import IdLists
from lethe_operator.settings import Settings

from tests.support.fake_cluster import watched
from tests.support.small_lake import SmallLake
from tests.support.unknown_types import add_column, drop_column


def seen(lake: SmallLake) -> Observation:
    sources = Sources(lake.cluster, watched(lake.cluster), TableReader(), IdLists(), Settings())  # type: ignore[arg-type]
    return observe(sources, "ns", "flights", utc_now()).world


@pytest.mark.parametrize("kind", ["variant", "geometry(srid:3857)", "of_a_later_version"])
def test_the_operator_goes_on_with_the_column_and_after_it(lake: SmallLake, tmp_path: Path, kind: str) -> None:
    before = seen(lake).table
    assert isinstance(before, TableView)

    add_column(tmp_path / "c.db", "air.flights", "shape", kind)
    during = seen(lake).table
    drop_column(tmp_path / "c.db", "air.flights", "shape")
    after = seen(lake).table

    assert isinstance(during, TableView)
    assert isinstance(after, TableView)
    assert during.uuid == after.uuid == before.uuid
