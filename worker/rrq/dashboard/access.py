"""Decides who sent a request and whether it may change something. Pure.

There are three ways in: a token, which is sent once and becomes a signed cookie; a user name in a header of a trusted
proxy; and none at all for clients on the same machine. ``callers.py`` reads the evidence from a request.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Container
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from rrq.dashboard.policy import EVERYBODY, AccessPolicy, Denial, Role, is_proxy

SESSION_SECONDS: Final = 12 * 3600
ANONYMOUS: Final = "anonymous"
_LONGEST_NAME: Final = 80


@dataclass(frozen=True)
class Evidence:
    """What a request says about its sender."""

    peer: str
    proxy_user: str | None = None
    cookie: str | None = None


@dataclass(frozen=True)
class Session:
    """The content of a session cookie."""

    id: str
    """Random, so that signing out ends this session and no other."""
    actor: str
    role: Role
    ends_at_seconds: int


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    actor: str
    role: Role
    session: Session | None = None

    @property
    def is_admin(self) -> bool:
        return self.role is Role.ADMIN


@dataclass(frozen=True)
class WriteEvidence:
    """What a request that changes something says about the page that sent it."""

    host: str
    origin: str | None
    fetch_site: str | None
    csrf_token: str | None


def decide_caller(
    policy: AccessPolicy, key: bytes, seen: Evidence, now_seconds: float, ended_ids: Container[str] = ()
) -> Caller | None:
    """Return the caller, or None for a client that must sign in. ``ended_ids``: sessions that were signed out."""
    if seen.proxy_user and is_proxy(policy, seen.peer):
        is_admin = bool(policy.proxy_admins & {seen.proxy_user, EVERYBODY}) and not policy.read_only
        return Caller(seen.proxy_user[:_LONGEST_NAME], Role.ADMIN if is_admin else Role.VIEWER)
    if seen.cookie and policy.takes_tokens:
        session = parse_session(key, seen.cookie, now_seconds)
        if session is not None and session.id not in ended_ids:
            return Caller(session.actor, policy.cap(session.role), session)
    return Caller(ANONYMOUS, Role.VIEWER) if policy.is_open else None


def decide_sign_in(policy: AccessPolicy, token: str) -> Role | None:
    """Return the role of a token. Always compares with both tokens, each in constant time."""
    is_admin = policy.admin_token is not None and _is_same(token, policy.admin_token)
    is_viewer = policy.view_token is not None and _is_same(token, policy.view_token)
    if is_admin:
        return policy.cap(Role.ADMIN)
    return Role.VIEWER if is_viewer else None


def decide_write(key: bytes, caller: Caller | None, cookie: str | None, seen: WriteEvidence) -> Denial | None:
    """Return why a request may not change anything, or None when it may."""
    if caller is None:
        return Denial(HTTPStatus.UNAUTHORIZED, "Sign in first.")
    if not caller.is_admin:
        return Denial(
            HTTPStatus.FORBIDDEN,
            f"{caller.actor} is a viewer here. Sign in with the admin token to change something.",
        )
    denial = decide_origin(seen)
    if denial is not None:
        return denial
    if not _is_same(seen.csrf_token or "", build_csrf_token(key, caller, cookie)):
        return Denial(HTTPStatus.FORBIDDEN, "The page is out of date. Reload it and try again.")
    return None


def decide_origin(seen: WriteEvidence) -> Denial | None:
    """Refuse requests that a page of another origin sent. Every browser sends the origin with a POST."""
    is_same_origin = seen.origin is not None and _network_location(seen.origin) == seen.host.lower() != ""
    if is_same_origin and seen.fetch_site in (None, "same-origin"):
        return None
    return Denial(HTTPStatus.FORBIDDEN, "The request does not come from a page of this dashboard.")


def name_actor(name: str, role: Role) -> str:
    """Return the name for the audit. A shared token proves only a role; its user chooses the name."""
    word = "".join(character for character in name.strip() if character.isprintable())[:_LONGEST_NAME]
    return f"{word} ({role} token)" if word else f"{role} token"


def build_key(policy: AccessPolicy, secret: bytes) -> bytes:
    """Return the key that signs cookies.

    The secret is random: a key made of the tokens alone could be computed or guessed by everyone who has a token. The
    tokens are part of the key so that a new token ends all sessions.
    """
    tokens = f"rrq dashboard\0{policy.admin_token}\0{policy.view_token}"
    return hmac.new(secret, tokens.encode(), hashlib.sha256).digest()


def build_session(key: bytes, session: Session) -> str:
    """Return the value of the session cookie, readable and signed."""
    claim = {
        "id": session.id,
        "actor": session.actor,
        "role": session.role.value,
        "ends": session.ends_at_seconds,
    }
    payload = base64.urlsafe_b64encode(json.dumps(claim).encode()).decode().rstrip("=")
    return f"{payload}.{_sign(key, 'session', payload)}"


def parse_session(key: bytes, cookie: str, now_seconds: float) -> Session | None:
    """Return the session of a cookie, or None when the signature is wrong or the session has expired."""
    payload, _, signature = cookie.partition(".")
    if not _is_same(signature, _sign(key, "session", payload)):
        return None
    claim = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    if claim["ends"] <= now_seconds:
        return None
    return Session(claim["id"], claim["actor"], Role(claim["role"]), claim["ends"])


def build_csrf_token(key: bytes, caller: Caller, cookie: str | None) -> str:
    return _sign(key, "csrf", (cookie or "") if caller.session is not None else caller.actor)


def _sign(key: bytes, purpose: str, text: str) -> str:
    # A header may hold bytes that are not UTF-8, which Python keeps as surrogates.
    message = f"{purpose}\0{text}".encode("utf-8", "surrogatepass")
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _is_same(given: str, expected: str) -> bool:
    # As bytes, because compare_digest refuses text beyond ASCII.
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


def _network_location(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""
