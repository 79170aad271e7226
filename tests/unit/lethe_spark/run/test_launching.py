"""What a JVM is started with."""

import os
from pathlib import Path

import pytest
from lethe_spark.run.launching import ARCHIVE, class_path, jar_folders, launch_confs


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """The environment of a driver in the image, whose jars lie in one folder."""
    (tmp_path / "jars").mkdir()
    for name in ("spark-core.jar", "iceberg-spark-runtime-4.jar", "a.jar", "README"):
        (tmp_path / "jars" / name).touch()
    return {"SPARK_HOME": str(tmp_path)}


def test_a_session_starts_without_the_catalogs_secrets_and_in_writable_places() -> None:
    confs = launch_confs(
        {"spark.master": "k8s://https://kubernetes.default", "spark.driver.extraJavaOptions": "-Dx=y"},
        {"SPARK_LOCAL_DIRS": "/scratch", "LETHE_DRIVER_MEMORY": "900m", "SPARK_HOME": "/opt/spark"},
    )

    assert not [k for k in confs if k.startswith("spark.sql.catalog.")]
    assert (
        confs["spark.driver.memory"],
        confs["spark.sql.session.timeZone"],
        confs["spark.ui.enabled"],
    ) == ("900m", "UTC", "false")
    assert "-Djava.io.tmpdir=/scratch" in confs["spark.driver.extraJavaOptions"]
    assert confs["spark.driver.extraJavaOptions"].endswith("-Dx=y")
    assert "spark.driver.host" not in confs


def test_the_jars_are_named_one_by_one_in_an_order_of_their_own(image: dict[str, str]) -> None:
    """`jars/*` would be in the order in which a node's file system lists them."""
    named = launch_confs({}, image)["spark.driver.extraClassPath"].split(os.pathsep)

    assert [Path(jar).name for jar in named] == ["a.jar", "iceberg-spark-runtime-4.jar", "spark-core.jar"]


def test_outside_the_image_lethes_own_jars_come_before_sparks(image: dict[str, str], tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "z.jar").touch()

    folders = jar_folders({**image, "LETHE_JARS": str(own)})

    assert folders == [str(own), f"{image['SPARK_HOME']}/jars"]
    assert Path(class_path(folders)[0]).name == "z.jar"


def test_an_archive_of_classes_is_used_where_there_is_one(image: dict[str, str]) -> None:
    without = launch_confs({}, image)["spark.driver.extraJavaOptions"]
    archive = Path(image["SPARK_HOME"], "jars", ARCHIVE)
    archive.touch()

    assert "Archive" not in without
    assert f"-XX:SharedArchiveFile={archive} " in launch_confs({}, image)["spark.driver.extraJavaOptions"]
