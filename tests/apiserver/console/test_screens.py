"""Each page with no, three and ten thousand Datasets, in light, dark and on a phone: without findings, fast, and as pictures.

`make console-screens` writes the pictures.
"""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from lethe.kube import RESTATEMENTS

from tests.apiserver.console.conftest import MANY, D, OpenBrowser, Person
from tests.support import gateway_lake
from tests.support.gateway_site import Site

pytestmark = pytest.mark.long

FOLDER = os.environ.get("LETHE_SCREENS", "")
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}},
}
LISTS = ("datasets", "restatements", "vacuums", "erasures", "attention")
FEED = "/console/fleet/datasets/feed-00999"
SCALES: dict[str, tuple[str, dict[str, str]]] = {
    "0": (
        "empty",
        {
            "overview": "/console/",
            **{name: f"/console/empty/{name}" for name in LISTS},
            "search": "/console/-/search?q=x",
        },
    ),
    "3": (
        "editor",
        {
            "overview": "/console/",
            **{name: f"/console/default/{name}" for name in LISTS},
            "search": "/console/-/search?q=f",
            "search-empty": "/console/-/search",
            "dataset": D,
            "dataset-many": "/console/default/datasets/many",
            "dataset-hostile": "/console/default/datasets/hostile",
            "table": f"{D}/table",
            "run": f"{D}/runs/flights-1",
            "batches": f"{D}/batches",
            "batch": f"{D}/batch?id=B",
            "restate": f"{D}/restate?operation=Replay&batch=A",
            "vacuum": f"{D}/vacuum",
            "dataset-erasures": f"{D}/erasures",
            "erasure": f"{D}/erasures/erase-d",
            "restatement": "/console/default/restatements/revert-b",
            "failed": "/console/default/restatements/revert-failed",
            "repeated": "/console/default/restatements/revert-twice-failed",
            "absent": "/console/default/datasets/absent",
            "unknown-parameter": f"{D}/batches?states=promoted",
        },
    ),
    "10000": (
        "fleet",
        {
            "overview": "/console/",
            **{name: f"/console/fleet/{name}" for name in LISTS},
            "filtered": "/console/fleet/datasets?name=9999",
            "search": "/console/-/search?q=feed-09999",
            "dataset": FEED,
        },
    ),
}
LOAD_SECONDS = 1.0


@pytest.fixture(scope="module", autouse=True)
def failures(site: Site) -> None:
    """A Restatement that failed, and one that failed and was repeated with success."""
    stopped = {"type": "Succeeded", "status": "False", "reason": "UnknownBatches", "message": "No batch is named Y."}
    stopped |= {"lastTransitionTime": "2026-03-01T12:00:00Z"}
    done = {**stopped, "status": "True", "reason": "Committed", "message": "1 batch was reverted."}
    for name, batch, phase, condition in (
        ("revert-failed", "Y", "Failed", stopped),
        ("revert-twice-failed", "Z", "Failed", stopped),
        ("revert-twice-again", "Z", "Succeeded", done),
    ):
        site.server.kube.create(RESTATEMENTS, "default", gateway_lake.restatement(name, batchIds=[batch]))
        status = {"status": {"phase": phase, "conditions": [condition]}}
        site.server.kube.patch(RESTATEMENTS, "default", name, status, "status")


def ready(me: Person) -> None:
    """Wait until the gateway has read all resources."""
    me.page.get_by_text("The figures are not complete yet.").wait_for(state="hidden", timeout=120_000)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("scale", SCALES)
def test_each_page_is_without_findings_and_not_too_wide(
    someone: OpenBrowser, request: pytest.FixtureRequest, scale: str, look: str
) -> None:
    account, pages = SCALES[scale]
    if account == "fleet":
        request.getfixturevalue("fleet")
    me: Person = someone(account, **LOOKS[look])
    ready(me)
    if FOLDER:
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
    findings = {}
    for name, path in pages.items():
        me.open(path)
        me.picture(f"{scale}-{look}-{name}", FOLDER)
        if (scale, look, name) == ("10000", "light", "overview"):
            me.picture("console-overview")
        found = me.violations()
        if me.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            found.append("the page is wider than the screen")
        if found:
            findings[path] = found
    me.complaints = [c for c in me.complaints if "404" not in c and "400" not in c]

    assert findings == {}


@pytest.mark.usefixtures("fleet")
def test_with_ten_thousand_datasets_each_page_loads_in_a_second(someone: OpenBrowser) -> None:
    """Also the first one, before all are read; and what is at the end of the list is found."""
    me: Person = someone()
    me.open("/console/")
    me.page.get_by_label("Token").fill(me.site.token("newcomer"))
    seconds = {"first": _seconds(lambda: me.page.get_by_role("button", name="Log in").click())}
    begun = time.monotonic()
    ready(me)
    print(f"all were read {time.monotonic() - begun:.1f} s after the first page")
    for name, path in SCALES["10000"][1].items():
        seconds[name] = _seconds(lambda path=path: me.open(path))  # type: ignore[misc]
    print({name: round(value, 3) for name, value in seconds.items()})

    me.open("/console/")
    assert f"{MANY:,}" in me.page.locator("dl.numbers").inner_text()
    assert me.page.get_by_text("Not ready: CatalogUnavailable").count() == 10
    me.open("/console/fleet/datasets?name=feed-09999")
    assert me.page.get_by_role("row").count() == 2
    assert {name: value for name, value in seconds.items() if value > LOAD_SECONDS} == {}


def _seconds(act: Any) -> float:
    """Until the page has loaded."""
    begun = time.monotonic()
    act()
    return time.monotonic() - begun
