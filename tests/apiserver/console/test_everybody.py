"""The console for everybody: with a keyboard, in the dark, on a narrow screen, without JavaScript, with assistive technology; and
with content that somebody wrote to break it."""

import html
import re

import pytest
import yaml
from playwright.sync_api import expect

from tests.apiserver.console.conftest import HOSTILE_IDS, MANY, D, OpenBrowser, Person

PAGES = (
    "/console/",
    "/console/default/datasets",
    "/console/-/search",
    "/console/-/search?q=f",
    "/console/default/attention",
    D,
    f"{D}/table",
    f"{D}/runs/flights-1",
    f"{D}/batches",
    f"{D}/batch?id=B",
    f"{D}/restate?operation=Replay&batch=A",
    f"{D}/vacuum",
    f"{D}/erasures",
    f"{D}/erasures/erase-d",
    "/console/default/restatements",
    "/console/default/restatements/revert-b",
    "/console/default/vacuums",
    "/console/default/erasures",
    "/console/default/datasets/many",
    "/console/default/datasets/hostile",
    "/console/default/datasets/hostile/batches",
    "/console/default/datasets/absent",
)
MANY_BATCHES = "/console/default/datasets/many/batches"
HOSTILE = "/console/default/datasets/hostile/batches"


OF_COLORS = ("color-contrast", "link-in-text-block")  # all rules of axe about colors that are on by default


def test_axe_finds_nothing_on_any_page(someone: OpenBrowser) -> None:
    """In the dark only the colors are others."""
    me: Person = someone()
    found = {}

    def look(path: str) -> None:
        me.open(path)
        found[path] = me.violations()
        me.page.emulate_media(color_scheme="dark")
        found[f"{path} in the dark"] = me.violations(*OF_COLORS)
        me.page.emulate_media(color_scheme="light")

    look("/console/")
    me.log_in("editor")
    for path in PAGES:
        look(path)
    me.complaints = [c for c in me.complaints if "404" not in c]  # of the page that is absent

    assert {path: v for path, v in found.items() if v} == {}


def test_the_dark_scheme_is_dark(someone: OpenBrowser) -> None:
    colors = {}
    for scheme in ("light", "dark"):
        me: Person = someone("analyst", color_scheme=scheme)
        me.open(D)
        colors[scheme] = me.page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert colors == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 25, 29)"}


def test_on_a_narrow_screen_only_tables_are_wider(someone: OpenBrowser) -> None:
    me: Person = someone("analyst", viewport={"width": 360, "height": 700})
    too_wide = {}
    for path in PAGES:
        me.open(path)
        width = me.page.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            too_wide[path] = width
    me.complaints = [c for c in me.complaints if "404" not in c]

    assert too_wide == {}


def test_the_keyboard_is_enough(someone: OpenBrowser) -> None:
    me: Person = someone()
    me.open("/console/")
    keys = me.page.keyboard
    me.page.get_by_label("Token").focus()
    keys.insert_text(me.site.token("editor"))
    keys.press("Enter")
    me.page.get_by_role("button", name="Log out").wait_for()

    me.open(D)
    keys.press("Tab")
    expect(me.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    keys.press("Enter")
    keys.press("Tab")
    expect(me.page.get_by_role("link", name="Batches", exact=True)).to_be_focused()
    assert me.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    keys.press("Enter")
    expect(me.page.get_by_role("heading", level=1)).to_contain_text("Batches of flights")
    me.page.get_by_label("Choose A", exact=True).focus()
    keys.press("Space")
    me.page.get_by_role("button", name="Revert the chosen…").focus()
    keys.press("Enter")
    me.page.locator("input[name=operation][value=Revert]").focus()
    keys.press("ArrowDown")
    assert me.page.locator("input[name=operation][value=Erase]").is_checked()
    me.page.get_by_role("button", name="Show YAML").focus()
    keys.press("Enter")
    expect(me.page.locator("pre")).to_contain_text("operation: Erase")


def test_without_javascript_everything_can_be_read_and_composed(someone: OpenBrowser) -> None:
    me: Person = someone("editor", java_script_enabled=False)
    for path in PAGES[:-1]:
        me.open(path)
        expect(me.page.get_by_role("heading", level=1)).to_be_visible()
    me.open(f"{D}/restate?operation=Revert&batch=A")
    me.page.get_by_role("button", name="Show YAML").click()

    expect(me.page.locator("pre")).to_contain_text("operation: Revert")


def test_ten_thousand_rows_are_shown_page_by_page(someone: OpenBrowser) -> None:
    me: Person = someone("analyst")
    me.open(f"{MANY_BATCHES}?state=promoted")
    rows, following = me.page.locator("tbody tr"), me.page.get_by_role("link", name="Next page")
    assert rows.count() == 100
    seen = pages = 0
    path: str | None = me.path
    while path is not None:
        last, text = path, me.page.request.get(f"{me.site.gateway.url}{path}").text()
        seen, pages = seen + text.count('<th scope="row">'), pages + 1
        found = re.search(r'href="([^"]*cursor=[^"]*)" rel="next"', text)
        path = html.unescape(found.group(1)) if found is not None else None

    assert (seen, pages) == (MANY, 100)
    me.open(last)
    assert rows.count() == 100
    expect(following).to_have_count(0)


@pytest.mark.parametrize("id", HOSTILE_IDS)
def test_a_hostile_batch_is_found_shown_and_restated_as_it_is(someone: OpenBrowser, id: str) -> None:
    me: Person = someone("analyst")
    me.open(HOSTILE)
    link = me.page.locator("tbody a").nth(sorted(HOSTILE_IDS, key=str.encode, reverse=True).index(id))
    shown = link.inner_text()
    assert not set("\u202e\u2066\n\t") & set(shown)
    link.click()
    expect(me.page.get_by_role("heading", level=1)).to_contain_text(shown[:200])

    me.open(HOSTILE)
    me.page.locator("tbody tr").filter(has_text=shown[:60]).get_by_role("checkbox").check()
    me.page.get_by_role("button", name="Erase the chosen…").click()
    with me.page.expect_download() as download:
        me.page.get_by_role("button", name="Download YAML").click()

    assert yaml.safe_load(download.value.path().read_text())["spec"]["batchIds"] == [id]


def test_a_script_that_somebody_brings_into_a_page_does_not_run(someone: OpenBrowser) -> None:
    me: Person = someone("analyst")
    me.page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s);"
        " document.body.insertAdjacentHTML('beforeend', '<img src=data:x onerror=window.broken=2>'); }"
    )

    assert me.page.evaluate("window.broken") is None
    assert any("Content Security Policy" in c for c in me.complaints)
    me.complaints.clear()
