"""What expressions of alerts and dashboard ask for: metrics, labels of theirs, and values of those labels.

No parser of PromQL: all our metrics begin with `rrq_`, matchers have no brace in them, and an aggregation names its labels
before what it sums up. promtool tells whether Prometheus understands an expression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from operator_series import Series

_SELECTION = re.compile(r"\b(rrq_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\bby \(([^)]*)\) \(")
_PAIRING = re.compile(r"\bon \(([^)]*)\)")
_ALL_IN_ONE = re.compile(r"\b(?:sum|min|max|count|avg|absent) ?\(")
_CHOICES = re.compile(r"label_values\((.+), (\w+)\)$")


@dataclass(frozen=True)
class Wish:
    """A series that an expression cannot do without."""

    metric: str
    labels: Mapping[str, str | None]
    """Labels with the value that they must have, or None where any will do."""

    def __str__(self) -> str:
        told = ", ".join(
            name if value is None else f'{name}="{value}"' for name, value in self.labels.items()
        )
        return f"{self.metric}{{{told}}}"


def find_metrics(expression: str) -> set[str]:
    return {name for name, _ in _SELECTION.findall(expression)}


def find_wishes(expression: str) -> Iterator[Wish]:
    """Yield what must be exported for the expression to mean what it says."""
    if choices := _CHOICES.match(expression):
        expression, label = choices.groups()
        yield from (Wish(name, {label: None}) for name in find_metrics(expression))
    for name, matchers in _SELECTION.findall(expression):
        for label, operator, value in _MATCHER.findall(matchers):
            is_choice = value.startswith("$")  # made by the person in front of the dashboard
            for one in [None] if is_choice or operator.startswith("!") else value.split("|"):
                yield Wish(name, {label: one})
        if not matchers:
            yield Wish(name, {})
    for labels, body in find_groupings(expression):
        yield from (
            Wish(name, {label: None})
            for name in find_metrics(body)
            for label in labels
            if not _is_relabelled(name, body)
        )
    for labels in _PAIRING.findall(expression):
        yield from (
            Wish(name, {label: None}) for name in find_metrics(expression) for label in _split(labels)
        )


def find_groupings(expression: str) -> Iterator[tuple[list[str], str]]:
    """Yield the labels of each aggregation with what it sums up."""
    for found in _GROUPING.finditer(expression):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(expression[end], 0)
            end += 1
        yield _split(found[1]), expression[found.end() : end - 1]


def find_labels_left(expression: str, exported: Series) -> set[str]:
    """Return the labels that the result of an expression has, so that words may name them."""
    groupings = [set(labels) for labels, _ in find_groupings(expression)]
    if groupings:
        return set.intersection(*groupings) - {"le"}
    if _ALL_IN_ONE.search(expression):
        return set()
    first = _SELECTION.search(expression)
    assert first is not None, expression
    return set(exported.get(first[1], ()))


def is_granted(wish: Wish, exported: Series) -> bool:
    labels = exported.get(wish.metric)
    return labels is not None and all(
        label in labels and (value is None or value in labels[label]) for label, value in wish.labels.items()
    )


def _is_relabelled(name: str, body: str) -> bool:
    """Whether the metric is given a label by the expression itself, and is known to lack the others."""
    return re.search(rf"label_replace\([^,]*\b{name}\b", body) is not None


def _split(labels: str) -> list[str]:
    return re.split(r", *", labels.strip())
