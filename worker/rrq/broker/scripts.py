"""Loads the Lua files: one atomic step each, put together from shared parts.

A file names the parts it needs in its second line (``-- needs: context, wake``); they are placed in
front of it in that order. A part that ends in ``return {…}`` is a module, made when a call first asks for it
(``flow().park(…)``), because defining functions that most calls never use would cost each of them;
modules may use each other. Sending the scripts is left to ``pipelined_connection.py``.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby

from rrq.jobs.codec import CLAIMED_FIELDS

#: What a claim reads of a job: the fields of the model without the last, which is only read where the arguments are
#: missing; and what only the script looks at. The worker gets that last field in the place of ``completion_time``.
CLAIM_READS = (*CLAIMED_FIELDS[:-1], "completion_time", "attempt_token", "suspect")

_LUA = files("rrq.broker") / "lua"
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
    modules = {part: source for part, source in parts.items() if _IS_MODULE.search(source)}
    # Declared before the first is made, so that two modules may need each other.
    pieces = [f"local {', '.join(modules)}"] if modules else []
    for are_modules, group in groupby(names, modules.__contains__):
        neighbours = {part: parts[part] for part in group}
        others = [body, *(source for part, source in parts.items() if part not in neighbours)]
        pieces += [_wrap(neighbours, "\n".join(others))] if are_modules else neighbours.values()
    return build_script(name, "\n".join([*pieces, body]))


def _wrap(modules: dict[str, str], others: str) -> str:
    """Return neighbouring modules as one function that makes them all, and what calls it when one is asked for.

    One function, because each function captures the variables in front of it anew, in every call. ``others`` is the rest
    of the script, which may ask for them.
    """
    made = "\n".join(f"{part} = once(function()\n{source}end)" for part, source in modules.items())
    make = f"make_{'_'.join(modules)}"
    asked = [part for part in modules if f"{part}()" in others]
    callers = [f"{part} = function() {make}() return {part}() end" for part in asked]
    return "\n".join([f"local function {make}()", made, "end", *callers])


def build_script(name: str, source: str) -> Script:
    """Return a script of this source; ``name`` is for people and metrics."""
    # Redis names a script by this digest; nothing depends on its security.
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _read_part(name: str) -> str:
    if name == "claimed_fields":
        return _claimed_fields()
    return (_LUA / "shared" / f"{name}.lua").read_text(encoding="utf-8")


def _claimed_fields() -> str:
    """Return the field list of ``jobs/codec.py`` as Lua, so that it is written down only once."""
    positions = {
        "TIMEOUT_FIELD": CLAIM_READS.index("job_timeout_seconds"),
        "ARGS_FIELD": CLAIM_READS.index("job_args"),
        "KWARGS_FIELD": CLAIM_READS.index("job_kwargs"),
        "PARAMS_FIELD": CLAIMED_FIELDS.index("job_params"),
        "SUSPECT_FIELD": CLAIM_READS.index("suspect"),
    }
    lines = [f"local {constant} = {position + 1}" for constant, position in positions.items()]
    quoted = ", ".join(f"'{name}'" for name in CLAIM_READS)
    return "\n".join([f"local FIELDS_READ = {{{quoted}}}", *lines])
