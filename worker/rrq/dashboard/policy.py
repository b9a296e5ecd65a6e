"""The rules of one dashboard: its tokens, its proxy and its host names, checked when it starts. Pure."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from rrq.exc import SettingsError

#: As a name in ``proxy_admins``: every user of the proxy.
EVERYBODY: Final = "*"
_SHORTEST_TOKEN: Final = 16

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Role(StrEnum):
    VIEWER = "read-only"
    ADMIN = "admin"


@dataclass(frozen=True)
class Denial:
    """Why a request is refused, for the user who sent it."""

    status: HTTPStatus
    reason: str


@dataclass(frozen=True)
class AccessOptions:
    """The options of the command line, with the tokens read from their files."""

    host: str
    """The address that the server binds to; empty for every address of the machine."""
    read_only: bool = False
    view_token: str | None = None
    admin_token: str | None = None
    proxy_user_header: str | None = None
    proxy_from: Sequence[str] = ()
    proxy_admins: Sequence[str] = ()
    public_hosts: Sequence[str] = ()


@dataclass(frozen=True)
class AccessPolicy:
    """The checked rules of one server."""

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
        """Whether every client that reaches the port is a viewer; such a port is bound to this machine."""
        return self.is_loopback and self.view_token is None and self.proxy_user_header is None

    def cap(self, role: Role) -> Role:
        """Return the role that a token gives on this server: without an admin token there are no admins."""
        return Role.VIEWER if self.read_only or self.admin_token is None else role


def build_policy(options: AccessOptions) -> AccessPolicy:
    """Return the rules. Raises SettingsError for rules that would leave the dashboard open."""
    is_loopback = _is_loopback(options.host)
    has_proxy = options.proxy_user_header is not None
    if not is_loopback and not (options.view_token or options.admin_token or has_proxy):
        raise SettingsError(
            f"The dashboard would show every job to every client that reaches {options.host or 'any address of this machine'}. "
            "Add --view-token-file or --admin-token-file, or --proxy-user-header behind a proxy that authenticates users, "
            "or bind it to 127.0.0.1."
        )
    if has_proxy and not is_loopback and not options.proxy_from:
        raise SettingsError(
            f"Every client that reaches {options.host or 'this machine'} could set {options.proxy_user_header}. Name the "
            "addresses of the proxy with --proxy-from, such as 10.0.0.0/8, or bind to 127.0.0.1."
        )
    if options.proxy_admins and not has_proxy:
        raise SettingsError("--proxy-admin needs --proxy-user-header; add it.")
    for option, token in (
        ("--view-token-file", options.view_token),
        ("--admin-token-file", options.admin_token),
    ):
        if token is not None and len(token) < _SHORTEST_TOKEN:
            raise SettingsError(
                f"The token of {option} has {len(token)} characters and could be guessed. Use at least "
                f"{_SHORTEST_TOKEN}, for example the output of `openssl rand -hex 24`."
            )
    if options.admin_token is not None and options.admin_token == options.view_token:
        raise SettingsError(
            "The two tokens are the same, so every viewer would be an admin. Change one of them."
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


def is_proxy(policy: AccessPolicy, peer: str) -> bool:
    """Whether a peer is the trusted proxy, whose headers name its clients."""
    if not policy.proxy_networks:
        return policy.proxy_user_header is not None and _is_loopback(peer)
    address = _parse_address(peer)
    return address is not None and any(address in network for network in policy.proxy_networks)


def find_client(policy: AccessPolicy, peer: str, forwarded_for: Sequence[str]) -> str:
    """Return the address whose limits a request counts against.

    That is the peer; behind a trusted proxy it is the last address in X-Forwarded-For that is not a trusted proxy.
    Every client can set that header, so from other peers it is ignored.
    """
    client = _parse_address(peer)
    hops = [hop.strip() for line in forwarded_for for hop in line.split(",")]
    while client is not None and hops and is_proxy(policy, str(client)):
        hop = _parse_address(_strip_port(hops.pop()))
        if hop is None:
            break
        client = hop
    if isinstance(client, ipaddress.IPv6Address):
        # One host can choose any address of a /64.
        return str(ipaddress.ip_network((client, 64), strict=False))
    return peer if client is None else str(client)


def decide_host(policy: AccessPolicy, host: str) -> Denial | None:
    """Refuse unknown host names: another site may let its own name resolve to this machine."""
    name = _parse_host_name(host)
    if not policy.is_loopback or name in policy.public_hosts or _is_loopback(name):
        return None
    return Denial(
        HTTPStatus.MISDIRECTED_REQUEST,
        f"This dashboard does not have the name {name!r}. Open it as 127.0.0.1 or localhost, or start it with "
        f"--public-host {name}.",
    )


def _parse_host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
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
    # A server on [::] sees IPv4 peers as IPv6 addresses.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _parse_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise SettingsError(
            f"--proxy-from {text!r} is neither an address nor a network: {error}. Write 10.0.0.0/8."
        ) from error
