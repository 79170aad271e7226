"""Which of an import path's entries Spark's Python workers keep."""

import zipfile
from pathlib import Path

from lethe_spark.apps.worker_daemon import without_archives


def test_archives_leave_the_path_and_folders_stay_in_their_order(tmp_path: Path) -> None:
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("pyspark/__init__.py", "")
    folders = [str(tmp_path / "b"), str(tmp_path), "", str(tmp_path / "not-there.zip")]

    kept = without_archives([folders[0], str(archive), *folders[1:]])

    assert kept == folders
