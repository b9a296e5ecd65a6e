"""Builds docs/reference/settings.md from the fields of RRQSettings."""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic_core import PydanticUndefined

from reference_text import NOTHING, code, render_page, render_table, words
from rrq.settings import RRQSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo
    from pydantic_settings import BaseSettings

OPENING = """
A setting is a keyword argument of `RRQSettings`, or an environment variable; the argument wins. In the pods of a pool the
variable wins, so that the [pool](pool.md) sets the Redis and the concurrency. Commands also read the nearest `.env` file in the
current folder or above.

```python
settings = RRQSettings(job_registry=registry, worker_concurrency=50)  # or RRQ_WORKER_CONCURRENCY=50
```

The names contain the units. A variable holds lists and mappings as JSON (`redis_sentinel_hosts` also takes commas). A setting
without a variable needs a keyword argument.

[Many workers](../multi-worker.md) explains how settings work together, [performance](../performance.md) what to change under
load.
"""

OTHERS = """
## Other variables

These are not settings. Options of commands have variables too: see the [command line](command-line.md).
"""

#: Read outside of the settings. `tests/docs/test_reference.py` looks for any that the code reads and nobody names.
OTHER_VARIABLES = {
    "RRQ_SETTINGS": "Dotted path of the settings object for commands that are not given `--settings`.",
    "RRQ_ENVIRONMENT_WINS": "`1`: the variables win over the settings object. The operator sets it.",
    "RRQ_POD_UID": "Identity of the pod, which the operator uses to drain it and to report its death. The operator sets it.",
    "RRQ_POD_SOLE_WORKER": (
        "`1`: no other container of this pod runs workers, so after a restart of the container RRQ requeues the jobs "
        "of the previous one at once. The operator sets it."
    ),
    "RRQ_POOL": "The pool (`namespace/name`) of a worker, for pauses of that pool. The operator sets it.",
    "RRQ_LOCAL_SESSION": "Marks the processes of one `rrq-operator local`, so that it can end all of them.",
    "RRQ_STATSD_HOST": "The host of the `statsd` exporter; 127.0.0.1 unless set.",
    "RRQ_STATSD_PORT": "Its port; 8125 unless set.",
    "RRQ_STATSD_PREFIX": "Prefix of its metric names; empty unless set.",
}

_SECTION = re.compile(r"^    # (.+)$|^    (\w+): ", re.MULTILINE)
_BOUNDS = {annotated_types.Gt: ">", annotated_types.Ge: "≥", annotated_types.Lt: "<", annotated_types.Le: "≤"}


def render() -> str:
    parts = []
    for section, names in group_by_comment(RRQSettings).items():
        shown = {code(name) for name in names}
        # Both names in one cell: five columns are more than a screen is wide.
        rows = [
            ("<br>".join(filter(None, row[:2])), *row[2:])
            for row in list_settings(RRQSettings)
            if row[0] in shown
        ]
        table = render_table(("setting and variable", "type", "default", "what it is"), rows)
        parts.append(f"## {section}\n\n{table}")
    others = render_table(
        ("variable", "what it is"), [(code(name), text) for name, text in OTHER_VARIABLES.items()]
    )
    return render_page("Settings", "worker/rrq/settings.py", OPENING, *parts, OTHERS, others)


def list_settings(model: type[BaseSettings]) -> Iterator[tuple[str, ...]]:
    """Yield name, variable, type, default and words of every setting, each as a cell of the table."""
    prefix = str(model.model_config.get("env_prefix", ""))
    for name, field in model.model_fields.items():
        remedy = f"Give it Field(description=...) in {Path(inspect.getfile(model)).name}."
        variable = NOTHING if _holds_code(field.annotation) else code(f"{prefix}{name}".upper())
        told = words(field.description, f"Setting {name}", remedy)
        yield code(name), variable, _name_type(field), _show_default(field), told


def group_by_comment(model: type[BaseSettings]) -> dict[str, list[str]]:
    """Return the names of the settings by the comment that stands above them in the class or a base of it."""
    groups: dict[str, list[str]] = {}
    section = "Settings"
    owners = [
        owner
        for owner in reversed(model.__mro__)
        if not owner.__module__.startswith(("pydantic", "builtins"))
    ]
    for comment, name in _SECTION.findall("".join(map(inspect.getsource, owners))):
        if comment:
            section = comment
        elif name in model.model_fields:
            groups.setdefault(section, []).append(name)
    return groups


def _holds_code(annotation: Any) -> bool:
    """Tell whether values are objects of Python, which no text can name."""
    if get_origin(annotation) is Callable or annotation is Callable:
        return True
    return any(map(_holds_code, get_args(annotation))) or _is_foreign(annotation)


def _is_foreign(annotation: Any) -> bool:
    is_ours = isinstance(annotation, type) and annotation.__module__.startswith("rrq.")
    # What pydantic knows how to read from JSON has fields with types.
    return is_ours and not getattr(annotation, "__annotations__", None)


def _name_type(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(bound, kind.__name__.lower())}"
        for bound in field.metadata
        for kind, sign in _BOUNDS.items()
        if isinstance(bound, kind)
    ]
    return " ".join([_name_annotation(field.annotation), *bounds])


def _name_annotation(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_name_annotation(choice) for choice in inside if choice is not type(None))
    if origin is Literal:
        return ", ".join(map(code, inside))
    if origin is list:
        return f"list of {_name_annotation(inside[0])}".replace("function", "functions")
    if origin is dict:
        return f"mapping of {_name_annotation(inside[0])} to {_name_annotation(inside[1])}"
    if origin is Callable:
        return "async function"
    return str(annotation.__name__)


def _show_default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "required"
    if default is None or default in ([], {}):
        return NOTHING
    return code(default if isinstance(default, str) else json.dumps(default))
