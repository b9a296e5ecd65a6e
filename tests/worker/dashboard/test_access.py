"""Who may look, who may act, and which requests are believed."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

from rrq.dashboard.access import (
    SESSION_SECONDS,
    Caller,
    Evidence,
    Session,
    WriteEvidence,
    build_csrf_token,
    build_key,
    build_session,
    decide_caller,
    decide_sign_in,
    decide_write,
    name_actor,
)
from rrq.dashboard.policy import (
    AccessOptions,
    AccessPolicy,
    Role,
    build_policy,
    decide_host,
    find_client,
)
from rrq.dashboard.responses import CONTENT_SECURITY_POLICY
from rrq.exc import SettingsError

VIEW, ADMIN = "v" * 20, "a" * 20
KEY = b"k" * 32
NOW = 1_700_000_000.0
BEHIND_PROXY: dict[str, Any] = {
    "host": "0.0.0.0",
    "proxy_user_header": "X-User",
    "proxy_from": ["10.0.0.0/8"],
    "proxy_admins": ["anna"],
}


def policy(host: str = "127.0.0.1", **options: Any) -> AccessPolicy:
    return build_policy(AccessOptions(host, **options))


def session_of(role: Role, expires_at_seconds: float = NOW + SESSION_SECONDS) -> Session:
    return Session("of-anna", "anna", role, int(expires_at_seconds))


def cookie_of(role: Role, expires_at_seconds: float = NOW + SESSION_SECONDS) -> str:
    return build_session(KEY, session_of(role, expires_at_seconds))


def caller(rules: AccessPolicy, peer: str = "127.0.0.1", **evidence: Any) -> Caller | None:
    return decide_caller(rules, KEY, Evidence(peer, **evidence), NOW)


# What the server refuses to start with


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.1.2.3", "dashboard.example.com"])
def test_other_addresses_need_a_token_or_a_proxy(host: str) -> None:
    with pytest.raises(
        SettingsError, match=r"--view-token-file or --admin-token-file, or --proxy-user-header"
    ):
        policy(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_clients_on_this_machine_are_viewers_without_a_token(host: str) -> None:
    assert caller(policy(host)) == Caller("anonymous", Role.VIEWER)


def test_a_proxy_header_off_the_machine_needs_the_address_of_the_proxy() -> None:
    with pytest.raises(SettingsError, match="Name the addresses of the proxy with --proxy-from"):
        policy("0.0.0.0", proxy_user_header="X-User")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"admin_token": "short"}, "could be guessed"),
        ({"view_token": ""}, "could be guessed"),
        ({"admin_token": VIEW, "view_token": VIEW}, "the same"),
        ({"proxy_admins": ["anna"]}, "--proxy-admin needs --proxy-user-header"),
        ({"proxy_user_header": "X-User", "proxy_from": ["ten"]}, "neither an address nor a network"),
    ],
)
def test_unsafe_options_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        policy(**options)


# Who the caller is


def test_only_a_valid_token_gives_a_role() -> None:
    rules = policy("0.0.0.0", view_token=VIEW, admin_token=ADMIN)
    assert decide_sign_in(rules, ADMIN) is Role.ADMIN
    assert decide_sign_in(rules, VIEW) is Role.VIEWER
    assert decide_sign_in(rules, "") is None
    assert decide_sign_in(rules, ADMIN + "x") is None
    assert decide_sign_in(rules, "ä" * 20) is None
    assert caller(rules) is None


def test_an_admin_token_gives_a_viewer_on_a_read_only_server() -> None:
    rules = policy(read_only=True, admin_token=ADMIN)
    assert decide_sign_in(rules, ADMIN) is Role.VIEWER
    assert caller(rules, cookie=cookie_of(Role.ADMIN)) == Caller("anna", Role.VIEWER, session_of(Role.ADMIN))


def test_an_admin_cookie_gives_a_viewer_without_a_configured_admin_token() -> None:
    cookie = cookie_of(Role.ADMIN)
    assert caller(policy(view_token=VIEW), cookie=cookie) == Caller(
        "anna", Role.VIEWER, session_of(Role.ADMIN)
    )
    # Without any token there are no sessions.
    assert caller(policy(**BEHIND_PROXY), cookie=cookie) is None


def test_a_session_ends_with_its_time_and_when_it_is_signed_out() -> None:
    rules = policy("0.0.0.0", admin_token=ADMIN)
    cookie = cookie_of(Role.ADMIN, NOW + 1)
    assert caller(rules, cookie=cookie) == Caller("anna", Role.ADMIN, session_of(Role.ADMIN, NOW + 1))
    assert caller(rules, cookie=cookie_of(Role.ADMIN, NOW)) is None
    assert decide_caller(rules, KEY, Evidence("127.0.0.1", cookie=cookie), NOW, {"of-anna"}) is None


def test_a_session_with_a_wrong_signature_is_ignored() -> None:
    rules, cookie = policy("0.0.0.0", admin_token=ADMIN), cookie_of(Role.ADMIN)
    for forged in (f"{cookie}0", f"x{cookie}", cookie[:-1], ".", "\udcff.a"):
        assert caller(rules, cookie=forged) is None, forged


@pytest.mark.parametrize("changed", [{"view_token": VIEW + "2"}, {"admin_token": ADMIN + "2"}])
def test_a_new_token_ends_all_sessions(changed: dict[str, str]) -> None:
    tokens = {"view_token": VIEW, "admin_token": ADMIN}
    assert build_key(policy(**tokens), b"secret") != build_key(policy(**tokens | changed), b"secret")


def test_a_trusted_proxy_names_the_user() -> None:
    rules = policy(**BEHIND_PROXY)
    assert caller(rules, "10.9.9.9", proxy_user="anna") == Caller("anna", Role.ADMIN)
    assert caller(rules, "10.9.9.9", proxy_user="omar") == Caller("omar", Role.VIEWER)
    assert caller(rules, "::ffff:10.9.9.9", proxy_user="omar") == Caller("omar", Role.VIEWER)
    assert caller(policy(**BEHIND_PROXY | {"proxy_admins": ["*"]}), "10.9.9.9", proxy_user="omar") == Caller(
        "omar", Role.ADMIN
    )


@pytest.mark.parametrize("peer", ["192.0.2.7", "::1", "", "127.0.0.1"])
def test_the_user_header_of_other_peers_is_ignored(peer: str) -> None:
    assert caller(policy(**BEHIND_PROXY), peer, proxy_user="anna") is None


def test_behind_a_proxy_there_are_no_anonymous_viewers() -> None:
    assert caller(policy(proxy_user_header="X-User")) is None
    assert caller(policy(proxy_user_header="X-User"), proxy_user="omar") == Caller("omar", Role.VIEWER)


def test_the_audit_has_the_role_and_the_given_name() -> None:
    assert name_actor(" anna\n\x1b[31m ", Role.ADMIN) == "anna[31m (admin token)"
    assert name_actor("", Role.ADMIN) == "admin token"
    assert len(name_actor("x" * 500, Role.ADMIN)) < 120


# Whose limits a request counts against


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        # What stands further left was written by the client itself.
        ("10.0.0.1", ["203.0.113.9, 192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["203.0.113.9", "192.0.2.7, 10.0.0.2"], "192.0.2.7"),
        ("::ffff:10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        # Some proxies write the port of the client as well.
        ("10.0.0.1", ["192.0.2.7:5555"], "192.0.2.7"),
        ("10.0.0.1", ["203.0.113.9:5555, 192.0.2.7:5556, 10.0.0.2:5557"], "192.0.2.7"),
        ("10.0.0.1", ["[2001:db8::1:2:3:4]:443"], "2001:db8::/64"),
        ("10.0.0.1", ["[2001:db8::1:2:3:4]"], "2001:db8::/64"),
        ("10.0.0.1", ["2001:db8::1:2:3:4"], "2001:db8::/64"),
        ("10.0.0.1", ["[::ffff:192.0.2.7]:443"], "192.0.2.7"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["nonsense:443"], "10.0.0.1"),
        ("10.0.0.1", ["[192.0.2.7"], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("192.0.2.7", ["203.0.113.9"], "192.0.2.7"),
        ("2001:db8::1:2:3:4", [], "2001:db8::/64"),
        ("", [], ""),
    ],
)
def test_forwarded_addresses_count_only_from_a_trusted_proxy(
    peer: str, forwarded_for: list[str], client: str
) -> None:
    rules = policy("0.0.0.0", view_token=VIEW, proxy_from=["10.0.0.0/8"])
    assert find_client(rules, peer, forwarded_for) == client


def test_without_a_configured_proxy_every_peer_is_a_client() -> None:
    assert find_client(policy(view_token=VIEW), "127.0.0.1", ["192.0.2.7"]) == "127.0.0.1"
    # The default of --proxy-user-header is a proxy on this machine.
    assert find_client(policy(proxy_user_header="X-User"), "127.0.0.1", ["192.0.2.7"]) == "192.0.2.7"


# What is believed of a request


@pytest.mark.parametrize(
    ("host", "is_refused"),
    [
        *((host, False) for host in ("127.0.0.1:8090", "localhost:8090", "[::1]:8090")),
        *((host, False) for host in ("jobs.example.com", "JOBS.example.com:443")),
        *((host, True) for host in ("evil.example:8090", "127.0.0.1.evil.example", "", "[")),
    ],
)
def test_the_dashboard_answers_to_its_own_names_only(host: str, is_refused: bool) -> None:
    denial = decide_host(policy(public_hosts=["jobs.example.com"]), host)
    assert (denial and denial.status) == (HTTPStatus.MISDIRECTED_REQUEST if is_refused else None)
    # Off the machine nobody knows its names.
    assert decide_host(policy("0.0.0.0", view_token=VIEW), "rrq-dashboard.shop.svc") is None


def write(**changes: Any) -> tuple[Caller, str, WriteEvidence]:
    who, cookie = Caller("anna", Role.ADMIN, session_of(Role.ADMIN)), cookie_of(Role.ADMIN)
    evidence = WriteEvidence(
        "jobs:8090", "http://jobs:8090", "same-origin", build_csrf_token(KEY, who, cookie)
    )
    return who, cookie, replace(evidence, **changes)


def test_the_page_of_the_dashboard_may_change_things() -> None:
    assert decide_write(KEY, *write()) is None
    # Browsers from before Sec-Fetch-Site still say where they come from.
    assert decide_write(KEY, *write(fetch_site=None)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://jobs"},
        {"origin": "null"},
        {"origin": None},
        {"fetch_site": "cross-site"},
        {"fetch_site": "same-site"},
        {"fetch_site": "none"},
        {"csrf_token": None},
        {"csrf_token": "0" * 64},
        {"host": "", "origin": "http://"},
        {"origin": "http://["},
    ],
)
def test_a_page_of_another_origin_may_not_change_anything(changes: dict[str, Any]) -> None:
    denial = decide_write(KEY, *write(**changes))
    assert denial is not None
    assert denial.status is HTTPStatus.FORBIDDEN


def test_a_csrf_token_is_valid_for_one_user_only() -> None:
    _, _, evidence = write()
    omar = Caller("omar", Role.ADMIN)
    assert decide_write(KEY, omar, None, evidence) is not None
    own = replace(evidence, csrf_token=build_csrf_token(KEY, omar, None))
    assert decide_write(KEY, omar, None, own) is None


def test_a_viewer_who_changes_something_is_refused() -> None:
    _, cookie, evidence = write()
    denial = decide_write(KEY, Caller("omar", Role.VIEWER), cookie, evidence)
    assert denial is not None
    assert denial.status is HTTPStatus.FORBIDDEN
    assert "omar is a viewer here" in denial.reason
    denial = decide_write(KEY, None, None, evidence)
    assert denial is not None
    assert denial.status is HTTPStatus.UNAUTHORIZED


def test_the_page_may_run_and_load_nothing_but_its_own_files() -> None:
    rules = dict(part.strip().split(" ", 1) for part in CONTENT_SECURITY_POLICY.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
