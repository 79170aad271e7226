"""Which jars go where, as jars.txt says."""

from pathlib import Path

from fetch_jars import LIST, read_list, remove_other_versions

LINES = """
image org.a:spark:1 aa
test org.b:sqlite:2 bb  # a remark
rest org.c:core:3:tests cc
sqs org.d:queue:4 dd
"""


def test_the_image_gets_what_only_tests_need_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jars.txt"
    path.write_text(LINES)

    assert read_list(path, "image") == [("org/a/spark/1/spark-1.jar", ".", "aa")]


def test_the_servers_jars_lie_off_sparks_class_path(tmp_path: Path) -> None:
    """They hold classes that Spark's jars hold too."""
    path = tmp_path / "jars.txt"
    path.write_text(LINES)

    assert read_list(path, "test")[1:] == [
        ("org/b/sqlite/2/sqlite-2.jar", ".", "bb"),
        ("org/c/core/3/core-3-tests.jar", "rest", "cc"),
        ("org/d/queue/4/queue-4.jar", "sqs", "dd"),
    ]


def test_every_line_of_the_list_is_understood() -> None:
    folders = {folder for _, folder, _ in read_list(LIST, "test")}
    assert folders == {".", "gcs", "rest", "sqs"}


def test_another_version_of_a_jar_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """Spark would load classes of both versions."""
    listed = tmp_path / "jars.txt"
    listed.write_text(LINES)
    (tmp_path / "rest").mkdir()
    kept = ["spark-1.jar", "spark-sql-0.jar", "unknown-3.jar", "rest/core-3-tests.jar"]
    for name in [*kept, "spark-0.9.jar", "rest/core-2-tests.jar"]:
        (tmp_path / name).touch()

    remove_other_versions(tmp_path, read_list(listed, "test"))

    assert sorted(kept) == sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.jar"))
