"""Which jars go where, as jars.txt says."""

from pathlib import Path

from fetch_jars import LIST, read_list

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
    assert folders == {".", "rest", "sqs"}
