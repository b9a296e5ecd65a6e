"""What SECURITY.md says of the operator's rights is what the chart grants."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "SECURITY.md").read_text()
ROLES = (ROOT / "charts/rrq/templates/rbac.yaml").read_text()


def test_the_guide_names_every_right_of_the_operator_and_no_other() -> None:
    granted = {
        (resource, verb)
        for resources, verbs in re.findall(r"resources: \[([^\]]+)\]\n\s+verbs: \[([^\]]+)\]", ROLES)
        for resource in resources.split(", ")
        for verb in verbs.split(", ")
    }
    rows = re.findall(
        r"^\| ([a-z/]+) \| ([^|]+) \| [^|]+ \|$", GUIDE.partition("## Kubernetes")[2], re.MULTILINE
    )
    told = {
        (resource, verb)
        for resource, verbs in rows
        if resource != "resource"
        for verb in re.findall(r"get|list|watch|create|patch|update|delete", verbs)
    }
    assert told == granted


def test_the_operator_may_neither_delete_nor_list_secrets() -> None:
    assert "delete" not in ROLES
    assert "*" not in re.sub(r"{{.*?}}", "", ROLES, flags=re.DOTALL).replace("/*", "").replace("*/", "")
    secrets = ROLES.partition("resources: [secrets]")[2]
    assert secrets.lstrip().startswith("verbs: [get]")
