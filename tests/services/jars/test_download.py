"""Jars are downloaded once, checked, and provided to Spark; what is missing is named. The server is Python's, on the loopback."""

import functools
import hashlib
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from lethe.base.errors import InputError, TransientError
from lethe.cli.main import cli
from lethe.jars import __main__ as command
from lethe.jars import download, provide
from lethe.jars.download import JarScope

CLOSED = "http://127.0.0.1:9"  # a closed port


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A Maven repository: its URL and its folder."""
    folder = tmp_path / "repository"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


@pytest.fixture
def two_jars(repository: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes a list of two jars and their repository, and returns its URL."""
    url, folder = repository
    lines = []
    for artifact, version in (("iceberg", "2"), ("driver", "1")):
        content = artifact.encode() * 1000
        place = folder / "org" / artifact / version
        place.mkdir(parents=True)
        (place / f"{artifact}-{version}.jar").write_bytes(content)
        lines.append(f"image org:{artifact}:{version} {hashlib.sha256(content).hexdigest()}")
    path = tmp_path / "jars.txt"
    path.write_text("\n".join(lines))
    monkeypatch.setattr(download.listed, "__defaults__", (path,))
    monkeypatch.setattr(download.time, "sleep", lambda _: None)
    return url


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_missing_jars_are_downloaded_once_into_the_cache(
    two_jars: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "MAVEN_REPO": f"{two_jars}/"}

    folder = provide.provide(environ)

    assert folder == tmp_path / "cache" / "lethe" / "jars"
    assert names(folder) == ["driver-1.jar", "iceberg-2.jar"]
    assert capsys.readouterr().err.splitlines() == [
        "downloading iceberg-2.jar (0 MB)",
        "downloading driver-1.jar (0 MB)",
    ]
    assert provide.provide({**environ, "MAVEN_REPO": CLOSED}) == folder  # asks no server
    assert capsys.readouterr().err == ""


def test_a_jar_with_another_checksum_is_not_used(two_jars: str, repository: tuple[str, Path], tmp_path: Path) -> None:
    (repository[1] / "org/driver/1/driver-1.jar").write_bytes(b"other")
    environ = {"XDG_CACHE_HOME": str(tmp_path), "MAVEN_REPO": two_jars}

    with pytest.raises(TransientError, match=r"driver-1\.jar: SHA-256 is [0-9a-f]{64}, jars\.txt says"):
        provide.provide(environ)

    assert names(tmp_path / "lethe" / "jars") == ["iceberg-2.jar"]


def test_without_network_the_error_names_each_file_and_its_place(two_jars: str, tmp_path: Path) -> None:
    assert two_jars
    with pytest.raises(TransientError) as e:
        provide.provide({"XDG_CACHE_HOME": str(tmp_path), "MAVEN_REPO": CLOSED})

    assert e.value.reason == "JarsNotDownloaded"
    for part in (
        f"{CLOSED}/org/iceberg/2/iceberg-2.jar (SHA-256 ",
        "driver-1.jar",
        str(tmp_path / "lethe/jars"),
        "MAVEN_REPO",
    ):
        assert part in e.value.message


def test_a_folder_that_the_user_names_is_never_changed(two_jars: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "iceberg-2.jar").touch()

    with pytest.raises(
        InputError, match=r"JarsMissing: LETHE_JARS names the folder .*/own, which lacks driver-1\.jar\. Put them there"
    ):
        provide.provide({"LETHE_JARS": str(own), "MAVEN_REPO": two_jars})

    assert names(own) == ["iceberg-2.jar"]


def test_another_version_of_a_jar_is_removed_and_nothing_else(two_jars: str, tmp_path: Path) -> None:
    """Spark would load classes of both versions."""
    folder = tmp_path / "lethe" / "jars"
    folder.mkdir(parents=True)
    for name in ("iceberg-1.9.jar", "iceberg-tools-1.jar", "other-1.jar"):
        (folder / name).touch()

    provide.provide({"XDG_CACHE_HOME": str(tmp_path), "MAVEN_REPO": two_jars})

    assert names(folder) == ["driver-1.jar", "iceberg-2.jar", "iceberg-tools-1.jar", "other-1.jar"]


def test_the_command_downloads_ahead_of_time_and_replaces_a_damaged_jar(two_jars: str, tmp_path: Path) -> None:
    (tmp_path / "iceberg-2.jar").write_text("damaged")
    arguments = ["jars", "--to", str(tmp_path), "--repository", two_jars]

    result = CliRunner().invoke(cli, arguments)

    assert result.exit_code == 0, result.output
    assert f"2 jars are in {tmp_path}" in result.output
    assert download.wrong(download.listed(JarScope.LOCAL), tmp_path) == ()


def test_the_command_prints_what_to_download_elsewhere(two_jars: str) -> None:
    result = CliRunner().invoke(cli, ["jars", "--list", "--repository", two_jars])

    assert [line.split("  ")[1] for line in result.output.splitlines()] == [
        f"{two_jars}/org/iceberg/2/iceberg-2.jar",
        f"{two_jars}/org/driver/1/driver-1.jar",
    ]


def test_the_jars_of_a_store_are_added_after_all_others(
    repository: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = repository
    place = folder / "com/azure/core/2"
    place.mkdir(parents=True)
    (place / "core-2.jar").write_bytes(b"azure")
    list_ = tmp_path / "list.txt"
    list_.write_text(f"image org:iceberg:2 0\nazure com.azure:core:2 {hashlib.sha256(b'azure').hexdigest()}\n")
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in ("iceberg-2.jar", "zz-core-1.jar"):
        (jars / name).touch()
    monkeypatch.setenv("MAVEN_REPO", url)
    monkeypatch.setattr("sys.argv", ["jars", str(jars), "--store", "azure", "--list", str(list_)])

    command.main()

    assert names(jars) == ["iceberg-2.jar", "zz-core-2.jar"]
