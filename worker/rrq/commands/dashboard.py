"""``rrq dashboard``: serve the web page that shows queues, workers, jobs and dead letters."""

import asyncio
import os
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rrq.broker.redis_advice import describe_redis_trouble
from rrq.commands.options import log_format_option, settings_option
from rrq.commands.output import print_line
from rrq.commands.refusal import Refusal
from rrq.dashboard.policy import AccessOptions, AccessPolicy, build_policy
from rrq.dashboard.session_key import read_own_session_key, read_session_key
from rrq.exc import SettingsError
from rrq.pod.http import parse_bind
from rrq.runtime.installation import describe_missing_extra
from rrq.runtime.logs import LogFormat, configure_logging
from rrq.settings import RRQSettings
from rrq.settings_loading import load_settings
from rrq.store import JobStore

if TYPE_CHECKING:
    from rrq.dashboard.server import DashboardOptions


@click.command()
@settings_option
@click.option(
    "--http",
    metavar="HOST:PORT",
    default="127.0.0.1:8090",
    show_default=True,
    envvar="RRQ_DASHBOARD_HTTP",
    help="Address to listen on. [env: RRQ_DASHBOARD_HTTP]",
)
@click.option(
    "--view-token-file",
    type=click.Path(path_type=Path),
    envvar="RRQ_DASHBOARD_VIEW_TOKEN_FILE",
    help="File with the token for viewers. [env: RRQ_DASHBOARD_VIEW_TOKEN_FILE]",
)
@click.option(
    "--admin-token-file",
    type=click.Path(path_type=Path),
    envvar="RRQ_DASHBOARD_ADMIN_TOKEN_FILE",
    help="File with the token for admins, who may change things. [env: RRQ_DASHBOARD_ADMIN_TOKEN_FILE]",
)
@click.option(
    "--session-key-file",
    type=click.Path(path_type=Path),
    envvar="RRQ_DASHBOARD_SESSION_KEY_FILE",
    help="File with the random key that signs session cookies; all replicas need the same key. Default: "
    "~/.local/state/rrq/dashboard-session-key, created when missing. [env: RRQ_DASHBOARD_SESSION_KEY_FILE]",
)
@click.option(
    "--read-only",
    is_flag=True,
    envvar="RRQ_DASHBOARD_READ_ONLY",
    help="Refuse all changes, also by admins.",
)
@click.option(
    "--proxy-user-header",
    metavar="NAME",
    envvar="RRQ_DASHBOARD_PROXY_USER_HEADER",
    help="Header in which the proxy in front names the user, such as X-Forwarded-User.",
)
@click.option(
    "--proxy-from",
    multiple=True,
    metavar="NETWORK",
    envvar="RRQ_DASHBOARD_PROXY_FROM",
    help="Addresses of the proxy. The user header, and X-Forwarded-For, which names the client for the limits, are "
    "ignored from other addresses. Default with --proxy-user-header: this machine.",
)
@click.option(
    "--proxy-admin",
    "proxy_admins",
    multiple=True,
    metavar="USER",
    envvar="RRQ_DASHBOARD_PROXY_ADMINS",
    help="User of the proxy who is an admin; * for all of them. Other users are viewers.",
)
@click.option(
    "--public-host",
    "public_hosts",
    multiple=True,
    metavar="NAME",
    envvar="RRQ_DASHBOARD_PUBLIC_HOSTS",
    help="Host name under which browsers open a dashboard on 127.0.0.1 behind a proxy.",
)
@click.option(
    "--hide-arguments",
    is_flag=True,
    envvar="RRQ_DASHBOARD_HIDE_ARGUMENTS",
    help="Never show arguments and results of jobs.",
)
@log_format_option
def dashboard(
    settings_path: str | None,
    http: str,
    view_token_file: Path | None,
    admin_token_file: Path | None,
    session_key_file: Path | None,
    read_only: bool,
    proxy_user_header: str | None,
    proxy_from: tuple[str, ...],
    proxy_admins: tuple[str, ...],
    public_hosts: tuple[str, ...],
    hide_arguments: bool,
    log_format: LogFormat,
) -> None:
    """Serve a web page that shows queues, pools, workers, jobs and dead letters, live.

    Without further options it is read-only and open to every user of this machine. Ctrl-C ends it.
    """
    if problem := describe_missing_extra("rrq dashboard", "dashboard"):
        raise Refusal(f"ERROR: {problem}")
    from rrq.dashboard.server import DashboardOptions

    host, port = parse_bind(http)
    policy = build_policy(
        AccessOptions(
            host,
            read_only,
            _read_token(view_token_file, "--view-token-file"),
            _read_token(admin_token_file, "--admin-token-file"),
            proxy_user_header,
            proxy_from,
            proxy_admins,
            public_hosts,
        )
    )
    settings = load_settings(settings_path)
    configure_logging(log_format, "INFO", None)
    options = DashboardOptions(
        policy,
        _read_secret(policy, session_key_file),
        hide_arguments,
        lambda error: describe_redis_trouble(settings.redis_dsn, error),
    )
    try:
        asyncio.run(_serve(settings, options, (host, port)))
    except OSError as error:
        # asyncio puts the address into its text, in a form that differs between versions of Python.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or error
        raise Refusal(
            f"ERROR: Cannot listen on {http}: {reason}. Choose another address with --http."
        ) from error


async def _serve(settings: RRQSettings, options: "DashboardOptions", address: tuple[str, int]) -> None:
    from rrq.dashboard.connections import serve
    from rrq.dashboard.server import Dashboard

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    store = JobStore(settings)
    try:
        async with serve(Dashboard(store, options).build_app(), options.policy, *address) as bound:
            print_line(f"The dashboard is at http://{bound} ({_describe(options.policy)}). Ctrl-C ends it.")
            await stopping.wait()
    finally:
        await store.aclose()


def _describe(policy: AccessPolicy) -> str:
    if policy.read_only or not (policy.admin_token or policy.proxy_admins):
        return "read-only"
    return "admins may change things"


def _read_secret(policy: AccessPolicy, path: Path | None) -> bytes:
    if path is not None:
        return read_session_key(path)
    # Without tokens there are no sessions that have to outlast a restart.
    return read_own_session_key() if policy.takes_tokens else secrets.token_bytes(32)


def _read_token(path: Path | None, option: str) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"The file of {option}, {path}, cannot be read: {reason}. Write the token into it, or name another file."
        ) from error
