"""The table of values in the chart's README, made of the comments in values.yaml. `make chart-docs` runs this file.

A comment that starts with `--` describes the value below it and what is inside of it. Every other value must be an
object whose values are described one by one; a value without words is an error.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

CHART = Path(__file__).parents[1] / "charts" / "rrq"
BEGIN, END = "<!-- values -->\n", "<!-- /values -->\n"


class UndescribedValue(Exception):
    """A value of the chart that no comment describes."""


def render_readme(readme: str, values: str) -> str:
    """Return the README with the table of these values between its two marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = [f"| `{name}` | {default} | {words} |" for name, default, words in list_values(values)]
    table = "\n".join(["| value | default | what it is |", "| --- | --- | --- |", *rows])
    return f"{before}{BEGIN}\n{table}\n\n{END}{after}"


def list_values(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, default and words of every value that is described."""
    described = read_comments(text)
    yield from _walk(yaml.safe_load(text), (), described)


def _walk(
    values: dict[str, Any], parents: tuple[str, ...], described: dict[tuple[str, ...], str]
) -> Iterator[tuple[str, str, str]]:
    for name, value in values.items():
        path = (*parents, name)
        if path in described:
            default = json.dumps(value, ensure_ascii=False) if value != "" else ""
            yield ".".join(path), f"`{default}`" if default else "", described[path].replace("|", "\\|")
        elif isinstance(value, dict) and value:
            yield from _walk(value, path, described)
        else:
            raise UndescribedValue(
                f"{'.'.join(path)} in values.yaml has no words. Put a comment that starts with `# --` above it."
            )


def read_comments(text: str) -> dict[tuple[str, ...], str]:
    """Return the described paths with their words. By indentation, for a YAML parser drops comments."""
    found: dict[tuple[str, ...], str] = {}
    parents: list[str] = []
    words: list[str] = []
    for line in text.splitlines():
        if comment := re.match(r"\s*# ?(.*)", line):
            if comment[1].startswith("-- "):
                words = [comment[1].removeprefix("-- ")]
            elif words:
                words.append(comment[1])
        elif key := re.match(r"( *)([\w-]+):", line):
            parents = [*parents[: len(key[1]) // 2], key[2]]
            if words:
                found[tuple(parents)] = " ".join(words)
            words = []
        else:
            words = []
    return found


def main(arguments: list[str]) -> int:
    readme = CHART / "README.md"
    written = readme.read_text()
    made = render_readme(written, (CHART / "values.yaml").read_text())
    if arguments != ["--check"]:
        readme.write_text(made)
        return 0
    if made == written:
        return 0
    sys.stderr.write(
        "make: the table in charts/rrq/README.md differs from values.yaml. Run make chart-docs and commit what it "
        "writes.\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
