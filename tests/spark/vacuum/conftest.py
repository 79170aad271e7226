"""Which files a vacuum purges one by one, without Spark's rows."""

from typing import Any

import pytest
from lethe_spark.jobs.vacuum import purge
from lethe_spark.jobs.vacuum.filtering import FilteredFiles


@pytest.fixture
def filtered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that were purged one by one."""
    paths: list[str] = []
    original = purge.filter_files

    def remembered(*arguments: Any) -> FilteredFiles:
        done = original(*arguments)
        paths.extend(done.replaced)
        return done

    monkeypatch.setattr(purge, "filter_files", remembered)
    return paths
