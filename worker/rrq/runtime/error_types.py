"""Names exceptions for people, as the last line of a traceback does. Pure.

Type and message are stored separately, because RRQ 0.7 reads the message and has no type.
"""

from typing import Final

from rrq.runtime.escaping import escape_unprintable

__all__ = ["LONGEST_ERROR_TYPE", "describe_error", "name_error_type"]

#: Longer than real names; the name of a class can be any text.
LONGEST_ERROR_TYPE: Final = 200


def name_error_type(error: BaseException) -> str:
    """Return the qualified name of its class, such as ``KeyError`` or ``shop.errors.CardRefused``.

    Built-in exceptions and those of the main program have no module. One line; of a name that is too long, the end.
    """
    kind = type(error)
    # An application may set it to any object.
    module: object = kind.__module__
    if module in ("builtins", "__main__"):
        name = kind.__qualname__
    else:
        name = f"{module if isinstance(module, str) else '<unknown>'}.{kind.__qualname__}"
    return escape_unprintable(name)[-LONGEST_ERROR_TYPE:]


def describe_error(error_type: str | None, message: str | None) -> str | None:
    """Return ``Type: message``, or the known one of both; None when neither is known.

    Older records, and errors that RRQ itself stores, have no type.
    """
    if not error_type:
        return message
    text = (message or "").strip()
    return f"{error_type}: {text}" if text else error_type
