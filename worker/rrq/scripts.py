"""Loads the Lua files: one atomic step each, put together from shared parts.

A file names the parts it needs in its second line (``-- needs: context, wake``); they are placed in
front of it in that order. A part that ends in ``return {…}`` is a module, made when a call first asks for it
(``flow().park(…)``), because defining functions that most calls never use would cost every one of them;
modules may use each other. Sending the scripts is left to ``connection.py``.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rrq.decoding import CLAIMED_FIELDS

#: What a claim reads of a job beyond the fields of the model. ``suspect`` must stay the last.
CLAIM_EXTRA_FIELDS = ("boost_ms", "completion_time", "attempt_token", "suspect")

_LUA = files("rrq") / "lua"
_IS_MODULE = re.compile(r"^return \{", re.MULTILINE)
_NEEDS = re.compile(r"^-- needs: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """One Lua script as Redis gets it."""

    name: str
    source: str
    sha: str


@cache
def load_script(name: str) -> Script:
    """Return the script of ``lua/<name>.lua`` with the parts it needs in front."""
    body = (_LUA / f"{name}.lua").read_text(encoding="utf-8")
    needs = _NEEDS.search(body)
    names = [part.strip() for part in needs.group(1).split(",")] if needs else []
    parts = {part: _read_part(part) for part in names}
    modules = [part for part, source in parts.items() if _IS_MODULE.search(source)]
    # Known to all of them before the first is made, so that two may need each other.
    head = [f"local {', '.join(modules)}"] if modules else []
    for part in modules:
        parts[part] = f"{part} = once(function()\n{parts[part]}end)"
    return build_script(name, "\n".join([*head, *parts.values(), body]))


def build_script(name: str, source: str) -> Script:
    """Return a script of this source; ``name`` is for people and metrics."""
    # Redis names a script by this digest; it protects nothing.
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _read_part(name: str) -> str:
    if name == "claimed_fields":
        return _claimed_fields()
    return (_LUA / "shared" / f"{name}.lua").read_text(encoding="utf-8")


def _claimed_fields() -> str:
    """Return the field list of ``decoding.py`` as Lua, so that it is written down only once."""
    names = (*CLAIMED_FIELDS, *CLAIM_EXTRA_FIELDS)
    positions = {
        "TIMEOUT_FIELD": "job_timeout_seconds",
        "ARGS_FIELD": "job_args",
        "KWARGS_FIELD": "job_kwargs",
        "PARAMS_FIELD": "job_params",
        "BOOST_FIELD": "boost_ms",
    }
    lines = [f"local {constant} = {names.index(name) + 1}" for constant, name in positions.items()]
    quoted = ", ".join(f"'{name}'" for name in names)
    return "\n".join([f"local CLAIMED_FIELDS = {{{quoted}}}", *lines])
