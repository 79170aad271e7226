"""Whatever a browser or an attacker sends, the console answers with a page, and never with an error of its own."""

from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe_gateway.settings import CallerLimits, GatewaySettings

from tests.unit.lethe_gateway.console.conftest import HOST, Session, a_session
from tests.unit.lethe_gateway.console.test_pages import PAGES, D, R, _Page, lake

NAMES = ("state", "prefix", "since", "until", "cursor", "id", "of", "name", "phase", "dataset", "decision", "open", "next",
         "batch", "batch_ids", "operation", "evict_by_days", "uri", "plan", "action", "token", "secret", "undoes")  # fmt: skip
FORMS = (f"{D}/restate", f"{D}/vacuum/approve", f"{D}/vacuum/now", f"{R}/plan-plan/apply", f"{R}/absent/apply")
ODD = ["\x00", "%", "%zz", "%ff", "-1", "2026-02-30", "9999-12-31", "0001-01-01", "promoted", "../..", "[]", "x" * 5000]
TEXTS = st.one_of(st.text(max_size=40), st.sampled_from(ODD))
FIELDS = st.lists(st.tuples(st.sampled_from(NAMES), TEXTS), max_size=5)
PATHS = st.sampled_from([p.partition("?")[0] for p in PAGES])


@pytest.fixture(scope="module")
def there() -> Session:
    parts = lake()
    parts.settings = GatewaySettings(namespaces=("ns",), limits=CallerLimits(requests_per_second=1e6, burst=1_000_000))
    return a_session(parts)


def encoded(fields: list[tuple[str, str]]) -> str:
    return urlencode([(name, value.encode("utf-8", "surrogatepass")) for name, value in fields])


@given(path=PATHS, fields=FIELDS)
def test_any_query_is_answered_with_a_page(there: Session, path: str, fields: list[tuple[str, str]]) -> None:
    answer = there.client.get(f"{HOST}{path}?{encoded(fields)}", follow_redirects=False)

    assert answer.status_code in (200, 303, 400, 404), (path, fields)
    _Page(answer.text)


@given(parts=st.lists(TEXTS.filter(bool), min_size=1, max_size=5))
def test_any_path_is_answered_with_a_page(there: Session, parts: list[str]) -> None:
    path = "/".join(quote(p.encode("utf-8", "surrogatepass"), safe="") for p in parts)
    answer = there.client.get(f"{HOST}/console/{path}", follow_redirects=False)

    assert answer.status_code in (200, 303, 307, 400, 404), path


@given(path=st.sampled_from(FORMS), fields=FIELDS)
def test_any_form_is_answered_with_a_page(there: Session, path: str, fields: list[tuple[str, str]]) -> None:
    body = encoded([*fields, ("form_key", there.form_key())])
    headers = {"Origin": HOST, "Content-Type": "application/x-www-form-urlencoded"}
    answer = there.client.post(f"{HOST}{path}", content=body, headers=headers, follow_redirects=False)

    assert answer.status_code in (200, 303, 400, 404, 409), (path, fields)


@pytest.mark.parametrize("body", [b"", b"\xff", b"a=%ff", b"&" * 5000, b"form_key=x&form_key=y"])
def test_a_broken_body_is_a_400_or_a_403(there: Session, body: bytes) -> None:
    headers = {"Origin": HOST, "Content-Type": "application/x-www-form-urlencoded"}

    assert there.client.post(f"{HOST}{D}/restate", content=body, headers=headers).status_code in (400, 403)


def test_methods_that_are_not_there_are_refused(there: Session) -> None:
    for path in ("/console/", D):
        assert there.client.delete(f"{HOST}{path}").status_code == 405
