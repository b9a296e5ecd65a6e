"""How an exception is named where people read of it: as the last line of its traceback does. Pure.

A record holds the type and the message apart: RRQ 0.7 reads the message and knows no type.
"""

from typing import Final

from rrq.runtime.escaping import escape_unprintable

__all__ = ["LONGEST_ERROR_TYPE", "describe_error", "name_error_type"]

#: Longer than every name that a person chose; the name of a class can be made of anything.
LONGEST_ERROR_TYPE: Final = 200


def name_error_type(error: BaseException) -> str:
    """Return the qualified name of its class, such as ``KeyError`` or ``shop.errors.CardRefused``.

    Built-in exceptions and those of the main program go without their module. One line, and the end of a name that
    is too long.
    """
    kind = type(error)
    # An application may set it to anything.
    module: object = kind.__module__
    if module in ("builtins", "__main__"):
        name = kind.__qualname__
    else:
        name = f"{module if isinstance(module, str) else '<unknown>'}.{kind.__qualname__}"
    return escape_unprintable(name)[-LONGEST_ERROR_TYPE:]


def describe_error(error_type: str | None, message: str | None) -> str | None:
    """Return ``Type: message``, or the one of both that is known; None when neither is.

    Older records, and what RRQ itself says of a job, have no type.
    """
    if not error_type:
        return message
    text = (message or "").strip()
    return f"{error_type}: {text}" if text else error_type
