"""Types of values in a manifest, each with its rule, and the smallest objects; ``spec.py`` puts them together.

A text is bounded in length as well: CEL charges a rule for the longest text that the schema allows.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

from rrq.cron import MONTH_NAMES, WEEKDAY_NAMES
from rrq.runtime.time_zones import parse_time_zone
from rrq_operator.api.redis_urls import LONGEST_URL, URL_RULES
from rrq_operator.api.rules import (
    CONTROL_CHARACTERS,
    Check,
    CheckIntOrString,
    Part,
    Rule,
    lacking,
    matching,
    number_or_text,
    refuse,
)

DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_PASSWORD = r"://[^/]*:[^/]+@|[?&][a-z_]*password="
_PERCENT = r"[1-9][0-9]?%|100%"
_QUANTITY = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]+)?"


def _cron_field(value: str, names: Iterable[str] = ()) -> str:
    value = "|".join((value, *names))
    part = rf"(\*|({value})(-({value}))?)(/[1-9]\d*)?"
    return rf"{part}(,{part})*"


# Ranges that run backwards and dates that no year has are left to CronSchedule.
_CRON = r"\s+".join(
    (
        _cron_field(r"[0-5]?\d"),
        _cron_field(r"[01]?\d|2[0-3]"),
        _cron_field(r"0?[1-9]|[12]\d|3[01]"),
        _cron_field(r"0?[1-9]|1[0-2]", MONTH_NAMES),
        _cron_field("[0-7]", WEEKDAY_NAMES),
    )
)


def _check_time_zone(name: str) -> str:
    try:
        parse_time_zone(name)
    except ValueError as error:
        raise refuse(str(error)) from None
    return name


QueueName = Annotated[
    str,
    Field(min_length=1, max_length=200),
    Check(matching(r"[^\s*?\[\]]+", "a queue name has no blanks and none of * ? [ ]")),
]
EntryName = Annotated[
    str,
    Field(max_length=63),
    Check(matching(DNS_LABEL, "a cron entry is named by lower-case letters, digits and '-'")),
]
Schedule = Annotated[
    str,
    Field(max_length=200),
    Check(
        matching(
            rf"\s*(?i:{_CRON})\s*",
            "a schedule has five fields, minute hour day month weekday, such as '*/5 * * * *' or "
            "'0 8 * * mon-fri'",
        )
    ),
]
TimeZone = Annotated[
    str,
    Field(max_length=64),
    Check(
        matching(
            r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*",
            "a time zone has its IANA name, such as UTC or Europe/Berlin",
        )
    ),
    AfterValidator(_check_time_zone),
    Check(
        Rule(
            # CEL has no list of time zones, but to read a time in an unknown one is an error, and an error refuses.
            "timestamp('2000-01-01T00:00:00Z').getFullYear(self) > 0",
            lambda _: True,  # _check_time_zone has said so with more words
            "the API server must know the time zone, as it knows Europe/Berlin",
        )
    ),
]
Image = Annotated[str, Field(max_length=500), Check(matching(r"\S+", "an image has a name, without blanks"))]
SettingsPath = Annotated[
    str,
    Field(max_length=253),
    Check(
        matching(
            rf"{_IDENTIFIER}([.:]{_IDENTIFIER})+",
            "settings is the dotted path of an object in a module, such as shop.jobs.settings",
        )
    ),
]
SecretName = Annotated[
    str,
    Field(max_length=253),
    Check(matching(_DNS_SUBDOMAIN, "the name of a Secret has lower-case letters, digits, '-' and '.'")),
]
SecretKey = Annotated[
    str,
    Field(max_length=253),
    Check(matching(r"[-._a-zA-Z0-9]+", "a key of a Secret has letters, digits, '-', '_' and '.'")),
]
RedisUrl = Annotated[
    str,
    Field(max_length=LONGEST_URL),
    *map(Check, URL_RULES),
    Check(
        lacking(
            _PASSWORD,
            "a URL with a password belongs into a Secret: put it there and name it in urlFrom.secretKeyRef",
        )
    ),
]
KeyPrefix = Annotated[
    str,
    Field(min_length=1, max_length=100),
    Check(matching(rf"[^{CONTROL_CHARACTERS}]+", "a key prefix has no control characters")),
]
Quantity = Annotated[
    int | str,
    CheckIntOrString(
        number_or_text(
            0,
            _QUANTITY,
            # Of a value that may be a number CEL believes no maxLength, so a pattern would exceed its budget.
            "isQuantity(self) && !self.startsWith('-')",
            "write an amount as Kubernetes does, not below zero: a whole number, or a text such as "
            "'500m', '1.5' or '2Gi'",
        )
    ),
]
ShareOfPods = Annotated[
    int | str,
    CheckIntOrString(
        number_or_text(
            1,
            _PERCENT,
            f"self.matches('^({_PERCENT})$')",
            "maxUnavailable is a number from 1 or a share from '1%' to '100%': with none, no node could be drained",
        )
    ),
]

#: Within what a worker takes.
Weight = Annotated[
    float,
    Field(ge=0.001, le=1_000_000),
    # Of a whole number the API server compares only the whole part of a minimum, and would take 0.
    Check(
        Rule(
            "self >= 0.001",
            lambda weight: weight >= 0.001,
            "a weight is at least 0.001: a queue without a share would never be served",
        )
    ),
]

#: Parts that Kubernetes itself checks when the child is applied; here only their kind is known.
Foreign = dict[str, Any]
_FOREIGN_SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_POD_TEMPLATE = {
    "metadata": {**_FOREIGN_SCHEMA, "description": "Labels and annotations of the pods."},
    "spec": {**_FOREIGN_SCHEMA, "description": "Fields of a pod spec."},
}


def _check_pod_template(template: Foreign) -> Foreign:
    if unknown := sorted(template.keys() - _POD_TEMPLATE.keys()):
        raise refuse(f"a pod template has metadata and spec, not {', '.join(unknown)}")
    return template


PodTemplate = Annotated[
    Foreign,
    AfterValidator(_check_pod_template),
    WithJsonSchema({"type": "object", "properties": _POD_TEMPLATE}),
]

#: The rule over amounts would exceed the budget of CEL with more than 15 of them.
_MOST_RESOURCES = 12


class SecretKeyRef(Part):
    """One value of a Secret in the namespace of the pool."""

    name: SecretName = Field(description="Name of the Secret.")
    key: SecretKey = Field(description="Key inside the Secret.")


class UrlFrom(Part):
    """Where the URL is kept."""

    secret_key_ref: SecretKeyRef = Field(description="A key of a Secret whose value is the URL.")


class Resources(Part):
    """CPU and memory of the worker container, as in any pod."""

    limits: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=_MOST_RESOURCES,
        description="Upper bounds; one worker process is run per whole CPU of limits.cpu.",
    )
    requests: dict[str, Quantity] = Field(
        default_factory=dict, max_length=_MOST_RESOURCES, description="What the scheduler sets aside."
    )


class Disruption(Part):
    """What a node drain may take at once (PodDisruptionBudget)."""

    max_unavailable: ShareOfPods = Field(
        default=1, description="Pods, or percent of them, that may be evicted at the same time."
    )
