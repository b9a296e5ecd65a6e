"""Who does what is done: the name that the audit stream keeps."""

import getpass
import os
import socket

import click


def _name_actor(_: click.Context, parameter: click.Parameter, given: str | None) -> str:
    if given is None:
        return name_login()
    if not given.strip():
        # Nothing is noted for an empty name: it stands for a program that acts for itself.
        raise click.BadParameter("the audit needs a name.", param=parameter)
    return given


def name_login() -> str:
    """Return who is logged in, and where."""
    try:
        login = getpass.getuser()
    # What it raises for a user without a name, as in many containers, depends on the version of Python.
    except (OSError, KeyError, ImportError):
        login = f"uid-{os.getuid()}"
    return f"{login}@{socket.gethostname()}"


as_option = click.option(
    "--as",
    "actor",
    metavar="NAME",
    callback=_name_actor,
    help="Who does this, for `rrq audit`. Default: your login name and host.",
)
