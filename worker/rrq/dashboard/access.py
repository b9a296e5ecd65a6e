"""Who may look at the dashboard, who may act, and what a browser is told about both. Pure.

Three ways in: a token that is sent once and becomes a signed cookie, a user name that a proxy in front puts into
a header, and nothing at all for whoever looks from the machine itself. ``server.py`` collects the evidence.
"""

import base64
import hashlib
import hmac
import ipaddress
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from rrq.exc import SettingsError

SESSION_SECONDS: Final = 12 * 3600
COOKIE_NAME: Final = "rrq_dashboard"
CSRF_HEADER: Final = "X-RRQ-CSRF"
ANONYMOUS: Final = "anonymous"
#: As a name of ``proxy_admins``: everybody whom the proxy lets through.
EVERYBODY: Final = "*"
_SHORTEST_TOKEN: Final = 16
_LONGEST_NAME: Final = 80

# The page brings everything it needs: no inline code, nothing from elsewhere, in nobody's frame.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Role(StrEnum):
    VIEWER = "read-only"
    ADMIN = "admin"


@dataclass(frozen=True)
class AccessOptions:
    """What the command line said, with the tokens read from their files."""

    host: str
    """What the server binds to; empty is every address of the machine."""
    read_only: bool = False
    view_token: str | None = None
    admin_token: str | None = None
    proxy_user_header: str | None = None
    proxy_from: Sequence[str] = ()
    proxy_admins: Sequence[str] = ()
    public_hosts: Sequence[str] = ()


@dataclass(frozen=True)
class AccessPolicy:
    """The rules of one server, checked."""

    is_loopback: bool
    read_only: bool
    view_token: str | None
    admin_token: str | None
    proxy_user_header: str | None
    proxy_networks: tuple[Network, ...]
    proxy_admins: frozenset[str]
    public_hosts: frozenset[str]

    @property
    def takes_tokens(self) -> bool:
        return self.view_token is not None or self.admin_token is not None

    @property
    def is_open(self) -> bool:
        """Whether anybody may look who reaches the port, which then is somebody on this machine."""
        return self.is_loopback and self.view_token is None and self.proxy_user_header is None


@dataclass(frozen=True)
class Evidence:
    """What a request says about who sent it."""

    peer: str
    proxy_user: str | None = None
    cookie: str | None = None


@dataclass(frozen=True)
class Session:
    """What a session cookie of ours says."""

    id: str
    """Random, so that signing out ends this session and no other."""
    actor: str
    role: Role
    ends_at_seconds: int


@dataclass(frozen=True)
class Caller:
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


@dataclass(frozen=True)
class Denial:
    """Why a request is refused, in words for the person behind it."""

    status: HTTPStatus
    reason: str


def build_policy(options: AccessOptions) -> AccessPolicy:
    """Return the rules; raises SettingsError for such as would leave the dashboard open."""
    is_loopback = _is_loopback(options.host)
    has_proxy = options.proxy_user_header is not None
    if not is_loopback and not (options.view_token or options.admin_token or has_proxy):
        raise SettingsError(
            f"The dashboard would show every job to whoever reaches {options.host or 'any address of this machine'}. "
            "Give it --view-token-file or --admin-token-file, or --proxy-user-header behind a proxy that signs people "
            "in, or bind it to 127.0.0.1."
        )
    if has_proxy and not is_loopback and not options.proxy_from:
        raise SettingsError(
            f"Anybody who reaches {options.host or 'this machine'} could write {options.proxy_user_header} himself. "
            "Say with --proxy-from which addresses the proxy has, such as 10.0.0.0/8, or bind to 127.0.0.1."
        )
    if options.proxy_admins and not has_proxy:
        raise SettingsError("--proxy-admin means nothing without --proxy-user-header; add it.")
    for option, token in (
        ("--view-token-file", options.view_token),
        ("--admin-token-file", options.admin_token),
    ):
        if token is not None and len(token) < _SHORTEST_TOKEN:
            raise SettingsError(
                f"The token of {option} has {len(token)} characters and could be guessed. Take at least "
                f"{_SHORTEST_TOKEN}, for instance of `openssl rand -hex 24`."
            )
    if options.admin_token is not None and options.admin_token == options.view_token:
        raise SettingsError(
            "The two tokens are the same, so everybody who may look could act. Take another one."
        )
    return AccessPolicy(
        is_loopback,
        options.read_only,
        options.view_token,
        options.admin_token,
        options.proxy_user_header,
        tuple(map(_parse_network, options.proxy_from)),
        frozenset(options.proxy_admins),
        frozenset(name.lower() for name in options.public_hosts),
    )


def decide_caller(
    policy: AccessPolicy, key: bytes, seen: Evidence, now_seconds: float, ended_ids: Container[str] = ()
) -> Caller | None:
    """Return who this is, or None for somebody who has to sign in. ``ended_ids``: sessions that were signed out."""
    if seen.proxy_user and is_proxy(policy, seen.peer):
        is_admin = bool(policy.proxy_admins & {seen.proxy_user, EVERYBODY}) and not policy.read_only
        return Caller(seen.proxy_user[:_LONGEST_NAME], Role.ADMIN if is_admin else Role.VIEWER)
    if seen.cookie and policy.takes_tokens:
        session = parse_session(key, seen.cookie, now_seconds)
        if session is not None and session.id not in ended_ids:
            return Caller(session.actor, _capped(policy, session.role), session)
    return Caller(ANONYMOUS, Role.VIEWER) if policy.is_open else None


def is_proxy(policy: AccessPolicy, peer: str) -> bool:
    """Whether a peer is the proxy in front, whose headers about its clients are trusted."""
    if not policy.proxy_networks:
        return policy.proxy_user_header is not None and _is_loopback(peer)
    address = _parse_address(peer)
    return address is not None and any(address in network for network in policy.proxy_networks)


def find_client(policy: AccessPolicy, peer: str, forwarded_for: Sequence[str]) -> str:
    """Return the address whose limits a request counts against.

    That is the peer; behind a trusted proxy it is the last address in X-Forwarded-For that is no trusted proxy.
    Every client can write that header, so from other peers it is ignored.
    """
    client = _parse_address(peer)
    hops = [hop.strip() for line in forwarded_for for hop in line.split(",")]
    while client is not None and hops and is_proxy(policy, str(client)):
        hop = _parse_address(_strip_port(hops.pop()))
        if hop is None:
            break
        client = hop
    if isinstance(client, ipaddress.IPv6Address):
        # One host has a whole /64 to choose addresses from.
        return str(ipaddress.ip_network((client, 64), strict=False))
    return peer if client is None else str(client)


def decide_host(policy: AccessPolicy, host: str) -> Denial | None:
    """Refuse names that are not ours: a foreign page may have its own name point at this machine."""
    name = _host_name(host)
    if not policy.is_loopback or name in policy.public_hosts or _is_loopback(name):
        return None
    return Denial(
        HTTPStatus.MISDIRECTED_REQUEST,
        f"This dashboard is not known as {name!r}. Open it as 127.0.0.1 or localhost, or start it with "
        f"--public-host {name}.",
    )


def decide_sign_in(policy: AccessPolicy, token: str) -> Role | None:
    """Return what a token allows. All comparisons take place, each in constant time."""
    is_admin = policy.admin_token is not None and _same(token, policy.admin_token)
    is_viewer = policy.view_token is not None and _same(token, policy.view_token)
    if is_admin:
        return _capped(policy, Role.ADMIN)
    return Role.VIEWER if is_viewer else None


def decide_write(key: bytes, caller: Caller | None, cookie: str | None, seen: WriteEvidence) -> Denial | None:
    """Say why a request may change nothing, or None when it may."""
    if caller is None:
        return Denial(HTTPStatus.UNAUTHORIZED, "Sign in first.")
    if not caller.is_admin:
        return Denial(
            HTTPStatus.FORBIDDEN,
            f"{caller.actor} may only look here. Sign in with the admin token to change something.",
        )
    denial = decide_origin(seen)
    if denial is not None:
        return denial
    if not _same(seen.csrf_token or "", build_csrf_token(key, caller, cookie)):
        return Denial(HTTPStatus.FORBIDDEN, "The page is out of date or not ours. Reload it and try again.")
    return None


def decide_origin(seen: WriteEvidence) -> Denial | None:
    """Refuse what a page of another origin sent. Every browser says where a POST comes from."""
    is_ours = seen.origin is not None and _network_location(seen.origin) == seen.host.lower() != ""
    if is_ours and seen.fetch_site in (None, "same-origin"):
        return None
    return Denial(HTTPStatus.FORBIDDEN, "The request comes from another page than the dashboard's own.")


def build_session(key: bytes, session: Session) -> str:
    """Return the value of the session cookie: readable, and signed so that only we can have written it."""
    claim = {
        "id": session.id,
        "actor": session.actor,
        "role": session.role.value,
        "ends": session.ends_at_seconds,
    }
    payload = base64.urlsafe_b64encode(json.dumps(claim).encode()).decode().rstrip("=")
    return f"{payload}.{_sign(key, 'session', payload)}"


def parse_session(key: bytes, cookie: str, now_seconds: float) -> Session | None:
    """Return who signed in, or None when the cookie is not ours or has expired."""
    payload, _, signature = cookie.partition(".")
    if not _same(signature, _sign(key, "session", payload)):
        return None
    claim = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    if claim["ends"] <= now_seconds:
        return None
    return Session(claim["id"], claim["actor"], Role(claim["role"]), claim["ends"])


def name_actor(name: str, role: Role) -> str:
    """Return who the audit will say it was. A shared token proves a role; the name is what its holder says."""
    word = "".join(character for character in name.strip() if character.isprintable())[:_LONGEST_NAME]
    return f"{word} ({role} token)" if word else f"{role} token"


def build_key(policy: AccessPolicy, secret: bytes) -> bytes:
    """Return what cookies are signed with.

    The secret is random: a key made of the tokens alone could be computed by anyone who has the tokens, or guessed
    offline. The tokens are part of it so that a new token ends all sessions.
    """
    tokens = f"rrq dashboard\0{policy.admin_token}\0{policy.view_token}"
    return hmac.new(secret, tokens.encode(), hashlib.sha256).digest()


def build_csrf_token(key: bytes, caller: Caller, cookie: str | None) -> str:
    return _sign(key, "csrf", (cookie or "") if caller.session is not None else caller.actor)


def _capped(policy: AccessPolicy, role: Role) -> Role:
    """Return the role that a token gives here: without an admin token nobody is admin by signing in."""
    return Role.VIEWER if policy.read_only or policy.admin_token is None else role


def _sign(key: bytes, purpose: str, text: str) -> str:
    # A header may hold bytes that are no text; Python keeps them as surrogates.
    message = f"{purpose}\0{text}".encode("utf-8", "surrogatepass")
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _same(given: str, expected: str) -> bool:
    # As bytes: compare_digest refuses text beyond ASCII.
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _network_location(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _strip_port(hop: str) -> str:
    """Return the address of `203.0.113.9:5555`, `[2001:db8::1]:443` and of either without a port."""
    bracketed, bracket, _ = hop.removeprefix("[").partition("]")
    if hop.startswith("[") and bracket:
        return bracketed
    # With more colons it is an IPv6 address.
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    # A server on [::] sees IPv4 peers in their IPv6 spelling.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _parse_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise SettingsError(
            f"--proxy-from {text!r} is no address and no network: {error}. Write 10.0.0.0/8."
        ) from error
