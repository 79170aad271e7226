"""A gateway is killed at each request that it sends while it completes an upload; others then look, complete and sweep."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.upload_kills import kill_at_each_request
from tests.support.upload_site import Site


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("layout", ["Directory", "File"])
def test_whenever_the_gateway_is_killed_complete_means_in_the_buffer_and_nothing_promised_is_lost(
    site: Site, layout: str, thorough: bool, tmp_path: Path
) -> None:
    def make(name: str) -> Site:
        (tmp_path / "buffers" / name).mkdir(parents=True)
        return replace(site, uri=f"file://{tmp_path}/buffers/{name}")

    assert kill_at_each_request(make, layout, thorough) > 20
