"""Builds docs/reference/keys.md from the docstrings of Keys."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from reference_text import Undescribed, code, render_page, render_table, words
from rrq.broker.keys import DEFAULT_PREFIX, Keys

if TYPE_CHECKING:
    from collections.abc import Iterator

OPENING = f"""
All keys of RRQ in Redis, under the default prefix `{DEFAULT_PREFIX}`; the setting `key_prefix` sets another, such as
`{{shop}}:` for Redis Cluster. Keys of RRQ 0.7 have the same names. `<…>` stands for a name; a `<scope>` is `f:<function>`,
`k:<function>:<key>` or `q:<queue>`.

Read the keys, but do not write them. [Architecture](../architecture.md) explains how they work together,
[SECURITY](../../SECURITY.md#redis) which users need rights to which keys.
"""

CLOSING = """
## Keys with a wrong type

A key that holds a value of another type, which no version of RRQ writes, is renamed to `<key>:unreadable` for a
person to look at, and expires after a week (the key of a job with the dead letters). Where the list of dead letters is such
a key, ids go to `<key>:overflow` instead, which nothing but your hand empties.
"""

#: The types as docstrings name them, and as TYPE replies.
TYPES = {
    "Hash": "hash",
    "List": "list",
    "Set": "set",
    "Sorted set": "zset",
    "Stream": "stream",
    "String": "string",
    "Channel": "channel",
}
_TYPE = re.compile(rf"({'|'.join(sorted(TYPES, key=len, reverse=True))})\b")


@dataclass(frozen=True)
class KeyFacts:
    pattern: str
    type: str
    meaning: str
    lifetime: str


def render() -> str:
    rows = [(code(key.pattern), key.type.lower(), key.meaning, key.lifetime) for key in list_keys()]
    return render_page(
        "Keys in Redis",
        "worker/rrq/broker/keys.py and control_keys.py",
        OPENING,
        render_table(("key", "type", "what it is", "lives"), rows),
        CLOSING,
    )


def list_keys(keys: Keys | None = None) -> Iterator[KeyFacts]:
    keys = keys or Keys()
    members = {name: member for owner in type(keys).__mro__ for name, member in vars(owner).items()}
    for name, member in members.items():
        is_key = isinstance(member, cached_property) or name.endswith("_key")
        if is_key and not name.startswith("_"):
            yield read_key(keys, name, inspect.getdoc(member))


def read_key(keys: Keys, name: str, docstring: str | None) -> KeyFacts:
    """Return what a docstring says of a key; raises Undescribed where it leaves something out."""
    remedy = "Say in its docstring in keys.py what it holds, and in a paragraph of its own how long it lives."
    meaning, _, rest = (docstring or "").partition("\n\n")
    meaning = words(meaning, f"Key {name}", remedy)
    found = _TYPE.match(meaning)
    if found is None:
        raise Undescribed(
            f"The type of key {name} is not known. Begin its docstring in keys.py with one of {', '.join(TYPES)}."
        )
    if not rest.startswith("Lives"):
        raise Undescribed(f"How long key {name} lives is not known. {remedy}")
    lifetime = words(rest.removeprefix("Lives").lstrip(","), f"The lifetime of key {name}", remedy)
    # The type has a column of its own.
    meaning = re.sub(r"^String: (\w)", lambda start: start[1].upper(), meaning)
    return KeyFacts(_build_pattern(keys, name), found[1], _name_as_in_redis(keys, meaning), lifetime)


def _build_pattern(keys: Keys, name: str) -> str:
    member = getattr(keys, name)
    if isinstance(member, str):
        return member
    given = {
        parameter: f"<{parameter.removesuffix('_name')}>"
        for parameter in inspect.signature(member).parameters
    }
    return str(member(**given))


def _name_as_in_redis(keys: Keys, meaning: str) -> str:
    """Name keys as Redis knows them, not as Python does."""
    own = {name for name in dir(type(keys)) if name.endswith("_key") or name == "notify_channel"}
    return re.sub(
        r"`(\w+)`",
        lambda found: code(_build_pattern(keys, found[1])) if found[1] in own else found[0],
        meaning,
    )
