"""Loads the Lua files: one atomic step each, put together from shared parts.

A file names the parts it needs in its second line (``-- needs: context, wake``); they are placed in
front of it in that order. Sending the scripts is left to ``connection.py``.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from rrq.decoding import CLAIMED_FIELDS

#: What a claim reads of a job beyond the fields of the model. ``suspect`` must stay the last.
CLAIM_EXTRA_FIELDS = ("completion_time", "attempt_token", "suspect")

_LUA = files("rrq") / "lua"
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
    parts = [part.strip() for part in needs.group(1).split(",")] if needs else []
    source = "\n".join([*(_read_part(part) for part in parts), body])
    # Redis names a script by this digest; it protects nothing.
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha)


def _read_part(name: str) -> str:
    if name == "claimed_fields":
        return _claimed_fields()
    return (_LUA / "shared" / f"{name}.lua").read_text(encoding="utf-8")


def _claimed_fields() -> str:
    """Return the field list of ``decoding.py`` as Lua, so that it is written down only once."""
    names = ", ".join(f"'{name}'" for name in (*CLAIMED_FIELDS, *CLAIM_EXTRA_FIELDS))
    timeout = CLAIMED_FIELDS.index("job_timeout_seconds") + 1
    return f"local CLAIMED_FIELDS = {{{names}}}\nlocal TIMEOUT_FIELD = {timeout}"
