"""Uploads into a buffer on a real S3 server: gateways that are killed, and contents that were not announced."""

import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from lethe_gateway.problems import Kind
from lethe_gateway.uploads.manifest import UploadState

from tests.support import gateway_lake
from tests.support.servers.s3 import OWNER, S3
from tests.support.tables import catalog_in
from tests.support.upload_kills import Batch, Life, get, kill_at_each_request, post, sweep
from tests.support.upload_site import GOOD, UPLOAD, Site, entries, parquet, problem

_CHILD = """
import sys
from pathlib import Path
from dataclasses import replace
from lethe_gateway.settings import UploadSettings
from tests.support.upload_kills import Batch, Life, dies_by_signal
from tests.support.upload_site import GOOD, Site

uri, last, after = sys.argv[1:]
site = Site(None, None, uri)
Batch(site, GOOD).complete(Life(int(last), after == "after", dies_by_signal))
"""


@pytest.fixture
def lake_site(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path / "home"))
    catalog = catalog_in(tmp_path / "home", **s3.properties(OWNER))
    bucket = s3.bucket(f"lake-{uuid.uuid4().hex[:8]}")
    return Site(catalog, gateway_lake.flights_table(catalog), f"s3://{bucket}/buffer")


@pytest.mark.parametrize("layout", ["Directory", pytest.param("File", marks=pytest.mark.long)])
def test_whenever_the_gateway_is_killed_complete_means_in_the_buffer_and_nothing_promised_is_lost(
    lake_site: Site, layout: str
) -> None:
    def make(name: str) -> Site:
        return replace(lake_site, uri=f"{lake_site.uri}/{layout}/{name}")

    assert kill_at_each_request(make, layout, thorough=False) > 20


def test_a_gateway_that_is_killed_by_a_signal_loses_nothing(lake_site: Site) -> None:
    """In a process of its own: nothing of it is left but what the store has."""
    whole = Life()
    sent = Batch(replace(lake_site, uri=f"{lake_site.uri}/sent"), GOOD)
    sent.send()
    sent.copied_to(replace(lake_site, uri=f"{lake_site.uri}/whole")).complete(whole)
    decided = next(n for n, r in enumerate(whole.requests) if r.startswith("put_if_absent") and r.endswith(".outcome"))
    marked = next(n for n, r in enumerate(whole.requests) if r.startswith("put_if_absent") and r.endswith("_SUCCESS"))

    for last, action in ((decided, get), (decided, sweep), (marked, post)):
        batch = sent.copied_to(replace(lake_site, uri=f"{lake_site.uri}/{last}-{action.__name__}"))
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, batch.site.uri, str(last), "after"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert child.returncode == -signal.SIGKILL, child.stderr

        action(batch)

        assert batch.is_in_buffer()
        assert action is sweep or get(batch)


def test_names_as_other_software_writes_them_are_those_of_the_objects(lake_site: Site, s3: S3) -> None:
    files = {"10%3A00/é (1) #~?&+.parquet": parquet(1), "a%2Fb/100%.parquet": parquet(2)}
    view, _ = lake_site.open(entries(files))
    for file, content in zip(view.files, files.values(), strict=True):
        assert httpx.put(file.url, content=content, headers=dict(file.headers)).status_code == 200

    done = lake_site.complete()

    bucket, _, folder = lake_site.uri.removeprefix("s3://").partition("/")
    batch = f"{folder}/batch_id=2026%2F03%2F03"
    assert (done.state, done.checked) == (UploadState.COMPLETE, True)
    assert {f"{batch}/{name}" for name in (*files, "_SUCCESS")} <= set(s3.keys(bucket))


def test_completing_compares_the_checksums_and_names_the_file(lake_site: Site, s3: S3) -> None:
    """Somebody wrote other content of the same size to the store, not through the URL."""
    view, _ = lake_site.open()
    other = parquet(8, 9)
    assert len(other) == len(GOOD["part-0.parquet"])
    bucket = lake_site.uri.removeprefix("s3://").partition("/")[0]
    s3.put(bucket, "buffer/batch_id=2026%2F03%2F03/part-0.parquet", other)
    sent = httpx.put(view.files[1].url, content=GOOD["day-1/part-1.parquet"], headers=dict(view.files[1].headers))
    assert sent.status_code == 200

    found = problem(Kind.CONTENT_DIFFERS, lake_site.complete)

    assert [e.field for e in found.errors] == ["part-0.parquet"]
    assert found.kind.status == 422
    assert lake_site.uploads.view(lake_site.buffer(), UPLOAD).state is UploadState.OPEN


def test_the_store_is_asked_for_checksums_that_it_keeps(lake_site: Site) -> None:
    view, _ = lake_site.open()
    for file, content in zip(view.files, GOOD.values(), strict=True):
        assert httpx.put(file.url, content=content, headers=dict(file.headers)).status_code == 200
    batch = Batch(replace(lake_site, spec={"buffer": {"uri": lake_site.uri}}), GOOD, "2026/03/03")
    life = Life()

    batch.complete(life)

    assert [r for r in life.requests if r.startswith("open ")] == []
    assert len([r for r in life.requests if r.startswith("sha256 ")]) == len(GOOD)
