"""Who may see a page, and which forms count."""

from ipaddress import ip_network

import pytest
from lethe_gateway.console import sessions
from lethe_gateway.console.pages import CONTENT_SECURITY_POLICY
from lethe_gateway.settings import ConsoleSettings, GatewaySettings

from tests.support.gateway_parts import READER, TOKEN, Parts, Rights
from tests.unit.lethe_gateway.console.conftest import HOST, Session, a_session


def test_a_page_without_a_session_leads_to_the_login_and_back(parts: Parts) -> None:
    session = a_session(parts, logged_in=False)

    first = session.get("/console/ns/datasets", name="a b")
    login = session.get("/console/-/login", next="/console/ns/datasets?name=a+b")
    back = session.log_in(wanted="/console/ns/datasets?name=a+b")

    assert first.status_code == 303
    assert first.headers["location"] == "/console/-/login?next=%2Fconsole%2Fns%2Fdatasets%3Fname%3Da%2Bb"
    assert login.status_code == 200
    assert back.headers["location"] == "/console/ns/datasets?name=a+b"
    assert session.get("/console/ns/datasets").status_code == 200


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.example/console/", "//evil.example/console/", "/\\evil.example", "/v1/namespaces", "console/"],
)
def test_the_login_leads_to_no_other_site(parts: Parts, wanted: str) -> None:
    assert a_session(parts, logged_in=False).log_in(wanted=wanted).headers["location"] == "/console/"


def test_the_cookie_cannot_be_read_by_scripts_or_sent_by_other_sites(parts: Parts) -> None:
    cookies = a_session(parts, logged_in=False).log_in().headers.get_list("set-cookie")

    (session,) = [c for c in cookies if f"={TOKEN};" in c]
    assert "HttpOnly" in session
    assert "SameSite=strict" in session
    assert "Path=/" in session


def test_over_tls_the_cookie_is_bound_to_the_host(parts: Parts) -> None:
    client = parts.client(token="")
    page = client.post(
        "https://lethe.example/console/-/login", data={"token": TOKEN}, headers={"Origin": "https://lethe.example"},
        follow_redirects=False,
    )  # fmt: skip

    assert page.status_code == 303
    (session,) = [c for c in page.headers.get_list("set-cookie") if f"={TOKEN};" in c]
    assert session.startswith("__Host-lethe-session-0=")
    assert "Secure" in session


def test_nobody_logs_in_over_a_connection_that_others_can_read(parts: Parts) -> None:
    client = parts.client(token="")
    where = "http://lethe.example"
    page = client.get(f"{where}/console/-/login")
    refused = client.post(f"{where}/console/-/login", data={"token": TOKEN}, headers={"Origin": where})

    assert "without TLS" in page.text
    assert refused.status_code == 403
    assert not client.cookies


def test_a_proxy_that_ends_tls_is_believed_if_it_is_trusted(parts: Parts) -> None:
    parts.settings = GatewaySettings(namespaces=("ns",), proxies=(ip_network("10.0.0.0/8"),))
    scope = {"type": "http", "scheme": "http", "headers": [(b"host", b"x.example"), (b"x-forwarded-proto", b"https")],
             "path": "/", "query_string": b"", "server": ("x.example", 80)}  # fmt: skip

    assert sessions.may_log_in({**scope, "client": ("10.1.2.3", 1)}, parts.settings)
    assert not sessions.may_log_in({**scope, "client": ("192.0.2.1", 1)}, parts.settings)


@pytest.mark.parametrize("length", [10, sessions.PART_LENGTH, sessions.PART_LENGTH + 1, sessions.MAX_TOKEN_LENGTH])
def test_a_token_of_any_usual_length_makes_a_session(length: int) -> None:
    token = "x" * length
    session = a_session(Parts(identity=Rights(callers={token: READER})), logged_in=False)

    assert session.log_in(token).status_code == 303
    assert session.get("/console/").status_code == 200
    assert session.parts.identity.asked[-1] == token


def test_a_shorter_token_replaces_all_parts_of_a_longer_one() -> None:
    long, short = "x" * 9000, "y" * 10
    session = a_session(Parts(identity=Rights(callers={long: READER, short: READER})), logged_in=False)
    session.log_in(long)
    session.log_in(short)

    session.get("/console/")

    assert session.parts.identity.asked[-1] == short


@pytest.mark.parametrize("token", ["", "wrong", "a;b", "a b", "ü", "x" * (sessions.MAX_TOKEN_LENGTH + 1)])
def test_what_is_no_token_makes_no_session(parts: Parts, token: str) -> None:
    session = a_session(parts, logged_in=False)
    page = session.log_in(token)

    assert page.status_code == 401
    assert not session.client.cookies
    assert "wrong" not in page.text


def test_after_the_logout_the_session_is_over(session: Session) -> None:
    assert session.post("/console/-/logout").status_code == 303
    assert session.get("/console/").status_code == 303


def test_the_api_does_not_accept_the_cookie(session: Session) -> None:
    assert session.get("/v1/namespaces").status_code == 401


@pytest.mark.parametrize(
    ("origin", "key"),
    [(HOST, ""), (HOST, "0" * 64), ("https://evil.example", None), ("null", None), ("http://localhost", None)],
)
def test_a_form_of_another_site_changes_nothing(session: Session, origin: str, key: str | None) -> None:
    page = session.post("/console/-/logout", origin=origin, key=key)

    assert page.status_code == 403
    assert session.get("/console/").status_code == 200


def test_a_form_without_an_origin_needs_the_browsers_word_that_it_is_ours(session: Session) -> None:
    data = {"form_key": session.form_key()}
    url = f"{HOST}/console/-/logout"

    assert session.client.post(url, data=data, follow_redirects=False).status_code == 403
    theirs = {"Sec-Fetch-Site": "cross-site"}
    assert session.client.post(url, data=data, headers=theirs, follow_redirects=False).status_code == 403
    ours = {"Sec-Fetch-Site": "same-origin"}
    assert session.client.post(url, data=data, headers=ours, follow_redirects=False).status_code == 303


def test_a_body_that_is_no_form_is_refused(session: Session) -> None:
    page = session.client.post(
        f"{HOST}/console/-/logout", json={"form_key": session.form_key()}, headers={"Origin": HOST}
    )

    assert page.status_code == 400


def test_a_proxys_header_counts_only_if_it_is_named_and_the_proxy_trusted() -> None:
    """The test client's address is no address, so a proxy is one that any network contains."""
    header = "X-Forwarded-Access-Token"
    plain, named = (
        GatewaySettings(),
        GatewaySettings(console=ConsoleSettings(token_header=header), proxies=(ip_network("10.0.0.0/8"),)),
    )
    scope = {"type": "http", "headers": [(header.lower().encode(), b"Bearer a-token")], "path": "/console/"}

    assert sessions.token_of({**scope, "client": ("10.0.0.9", 1)}, named) == "a-token"
    for client, settings in ((("192.0.2.1", 1), named), (("10.0.0.9", 1), plain)):
        with pytest.raises(Exception, match="unauthenticated"):
            sessions.token_of({**scope, "client": client, "scheme": "http", "query_string": b""}, settings)


def test_without_the_proxys_token_a_page_says_so_instead_of_asking_for_one() -> None:
    parts = Parts(settings=GatewaySettings(namespaces=("ns",), console=ConsoleSettings(token_header="X-Token")))
    page = a_session(parts, logged_in=False).get("/console/")

    assert page.status_code == 401
    assert "X-Token" in page.text


def test_the_bare_address_leads_to_the_console(parts: Parts) -> None:
    answer = a_session(parts, logged_in=False).get("/")

    assert (answer.status_code, answer.headers["location"]) == (303, "/console/")


def test_a_console_that_is_off_is_not_there() -> None:
    parts = Parts(settings=GatewaySettings(namespaces=("ns",), console=ConsoleSettings(enabled=False)))

    assert parts.client().get("/console/").status_code == 404
    assert a_session(parts, logged_in=False).get("/console/-/login").status_code == 401
    assert parts.client().get("/").status_code == 404


def test_every_page_forbids_scripts_and_styles_of_others(session: Session) -> None:
    for path in ("/console/", "/console/-/login", "/console/ns/absent", "/console/ns/datasets/absent"):
        headers = session.get(path).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_files_of_pages_need_no_login_and_may_be_kept(parts: Parts) -> None:
    session = a_session(parts, logged_in=False)
    for name, kind in (("htmx.min.js", "text/javascript"), ("console.css", "text/css"), ("icon.svg", "image/svg+xml")):
        found = session.get(f"/console/-/static/any/{name}")
        assert found.headers["content-type"].startswith(kind)
        assert "immutable" in found.headers["cache-control"]
    assert session.get("/console/-/static/any/..%2Fpages.py").status_code == 404
