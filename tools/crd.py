"""The definition of RRQWorkerPool and what is made of it: `make crd` writes them, `--check` names those that differ.

The models of the operator are the source; crds/ is what people apply, and the chart has a copy. The schema of the
chart's values knows the fields of a pool from it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from chart_schema import DEFINITION, SCHEMA, render_schema
from rrq_operator.api.crd import render_crd

ROOT = Path(__file__).parents[1]
CHART_COPY = ROOT / "charts" / "rrq" / "files" / "crds" / DEFINITION.name


def render_files() -> dict[Path, str]:
    definition = render_crd()
    return {
        DEFINITION: definition,
        CHART_COPY: definition,
        SCHEMA: render_schema(SCHEMA.read_text(), definition),
    }


def main(arguments: list[str]) -> int:
    outdated = [(file, text) for file, text in render_files().items() if file.read_text() != text]
    for file, text in outdated:
        path = file.relative_to(ROOT)
        if arguments == ["--check"]:
            sys.stderr.write(
                f"make: {path} differs from operator/rrq_operator. Run make crd and commit what it writes.\n"
            )
        else:
            file.write_text(text)
            print(f"crd: wrote {path}")
    return 1 if outdated and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
