"""Masks passwords in texts that leave the process: logs and error messages. Pure.

When in doubt it masks too much: a missing host name in a log line is a nuisance, a password in it is an incident.
"""

import re
from typing import Final

__all__ = ["MASK", "clean_foreign_text", "is_secret_name", "mask_secrets", "mask_url"]

MASK: Final = "***"

#: Maximum length of a text by another program. It may go into logs, conditions and events.
_LONGEST_FOREIGN_TEXT: Final = 1024
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SPACE: Final = re.compile(r"\s")
_END_OF_HOST: Final = re.compile(r"[/?#]")
# In a query string or in keyword arguments, up to the end of the word, because a password may contain a comma or a
# bracket.
_ASSIGNED: Final = re.compile(r"(passw(?:or)?d\w{0,20}=)[^&\s]+", re.IGNORECASE)
# In the text of a dictionary.
_QUOTED: Final = re.compile(
    r"""(passw(?:or)?d\w{0,20}['"]\s*:\s*)(?:b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*"|[^\s,}]+)""",
    re.IGNORECASE,
)


def mask_url(url: str) -> str:
    """Return a URL without user, password and the values of password options. Never raises."""
    if "://" not in url:
        # The scheme is missing, but there may be a password.
        return _mask_assigned(MASK + url[url.rfind("@") :] if "@" in url else url)
    if _lacks_host(url):
        scheme, mark, _ = url.partition("://")
        return f"{scheme}{mark}{MASK}"
    return _mask_assigned(_mask_user_info(url, may_hold_spaces=True))


def mask_secrets(text: str) -> str:
    """Return ``text`` with everything masked that looks like a password. Never raises."""
    if "://" in text and "@" in text:
        text = _mask_user_info(text)
    return _mask_assigned(text)


def clean_foreign_text(text: str) -> str:
    """Return a text by another program as one line of at most 1,024 characters, without control characters."""
    if len(text) > _LONGEST_FOREIGN_TEXT:
        text = f"{text[: _LONGEST_FOREIGN_TEXT - 1]}…"
    return _CONTROL.sub("?", text)


def is_secret_name(name: str) -> bool:
    """Return whether a field of this name holds a password."""
    name = name.lower()
    return "password" in name or "passwd" in name


def _mask_user_info(text: str, *, may_hold_spaces: bool = False) -> str:
    """Mask from "://" to the last "@" of the word, because a password may contain every other character.

    Written by hand, because one pattern would not be linear in the length of the text.
    """
    parts: list[str] = []
    written = looked = word_end = 0
    at = -1
    while (mark := text.find("://", looked)) >= 0:
        start = looked = mark + 3
        if start > word_end:
            space = None if may_hold_spaces else _SPACE.search(text, start)
            word_end = space.start() if space else len(text)
            at = text.rfind("@", start, word_end)
        if at >= start and _has_user_info(text, start, word_end):
            parts += (text[written:start], MASK)
            written, looked = at, word_end
    return "".join([*parts, text[written:]])


def _lacks_host(url: str) -> bool:
    """Return True for ``redis://user:secret``, which has no host, and False for ``redis://host:6379``."""
    head = _END_OF_HOST.split(url.partition("://")[2], maxsplit=1)[0]
    _, colon, port = head.rpartition(":")
    return "@" not in url and bool(colon) and not port.isdigit() and not port.endswith("]")


def _has_user_info(text: str, start: int, word_end: int) -> bool:
    """Return True for an "@" behind user and password, and False for one in a path, such as ``host/@name``.

    A password with a "/" makes the URL invalid, but it is still a password.
    """
    end = _END_OF_HOST.search(text, start, word_end)
    head = text[start : end.start() if end else word_end]
    if "@" in head:
        return True
    _, colon, port = head.rpartition(":")
    return bool(colon) and not port.isdigit()


def _mask_assigned(text: str) -> str:
    if "assw" not in text and "ASSW" not in text:
        return text
    text = _ASSIGNED.sub(rf"\g<1>{MASK}", text)
    return _QUOTED.sub(rf"\g<1>'{MASK}'", text)
