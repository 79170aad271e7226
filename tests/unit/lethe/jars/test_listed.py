"""Which jars belong to which scope and folder, as jars.txt says."""

from pathlib import Path

import pytest
from lethe.jars.download import JarScope, listed

LINES = """
image org.a:spark:1 aa
local org.b:sqlite:2 bb  # a remark
rest org.c:core:3:tests cc
sqs org.d:queue:4 dd
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jars.txt"
    path.write_text(LINES)
    return path


def test_the_image_has_no_jar_that_only_local_runs_or_tests_need(path: Path) -> None:
    assert [(j.path, j.folder, j.sha256) for j in listed(JarScope.IMAGE, path)] == [
        ("org/a/spark/1/spark-1.jar", ".", "aa")
    ]


def test_local_runs_have_all_jars_of_sparks_class_path(path: Path) -> None:
    assert [(j.name, j.folder) for j in listed(JarScope.LOCAL, path)] == [("spark-1.jar", "."), ("sqlite-2.jar", ".")]


def test_jars_of_servers_are_not_in_sparks_class_path(path: Path) -> None:
    """They contain classes that Spark's jars contain, too."""
    assert [(j.path, j.folder, j.artifact) for j in listed(JarScope.TEST, path)][2:] == [
        ("org/c/core/3/core-3-tests.jar", "rest", "core"),
        ("org/d/queue/4/queue-4.jar", "sqs", "queue"),
    ]


def test_every_line_of_the_list_has_a_known_scope() -> None:
    assert {jar.folder for jar in listed(JarScope.TEST)} == {".", "flink", "gcs", "kafka", "kit", "rest", "sqs"}
    assert any(jar.name.startswith("iceberg-spark-runtime") for jar in listed(JarScope.IMAGE))
