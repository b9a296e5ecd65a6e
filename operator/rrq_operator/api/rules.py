"""Rules of a manifest, written once for two judges: CEL for the API server, Python for local mode.

A rule carries the words for the person who broke it. They replace the pattern that a plain schema would show,
and never quote the value: it may be a URL with a password.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

VALIDATIONS: Final = "x-kubernetes-validations"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"


class Rule(NamedTuple):
    """One rule, said twice: in CEL about ``self``, and as a function of the same value."""

    cel: str
    holds: Callable[[Any], bool]
    message: str


#: Characters that end a line or steer a terminal, as a part of a class: C0, DEL, C1 with NEL, and the separators of lines
#: and paragraphs.
CONTROL_CHARACTERS: Final = r"\x00-\x1f\x7f-\x9f\u2028\u2029"


def matching(pattern: str, message: str, *, subject: str = "self") -> Rule:
    """Return the rule that a text as a whole matches ``pattern``, in the syntax that Python and RE2 share."""
    # ASCII, for in RE2 \s and \S know no other blanks.
    whole = re.compile(pattern, re.ASCII)
    return Rule(
        f"{subject}.matches(r'^(?:{for_re2(pattern)})$')",
        lambda text: whole.fullmatch(text) is not None,
        message,
    )


def lacking(pattern: str, message: str) -> Rule:
    """Return the rule that ``pattern`` is nowhere in a text."""
    found = re.compile(pattern)
    return Rule(f"!self.matches(r'{for_re2(pattern)}')", lambda text: found.search(text) is None, message)


def number_or_text(least: int, pattern: str, cel_of_text: str, message: str) -> Rule:
    """Return the rule over a value that is a whole number, or a text that as a whole matches ``pattern``."""
    whole = re.compile(pattern, re.ASCII)

    def holds(value: Any) -> bool:
        if isinstance(value, str):
            return whole.fullmatch(value) is not None
        # In Python true is 1 as well.
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return Rule(f"type(self) == int ? self >= {least} : {cel_of_text}", holds, message)


def for_re2(pattern: str) -> str:
    """Return a pattern as RE2 writes it: characters of four digits are the one thing that Python spells differently."""
    return re.sub(r"\\u([0-9a-f]{4})", r"\\x{\1}", pattern)


def build_validations(rules: Iterable[Rule]) -> list[dict[str, str]]:
    return [{"rule": rule.cel, "message": rule.message} for rule in rules]


def refuse(*messages: str) -> PydanticCustomError:
    # As an argument and not as the template, where braces would have a meaning.
    return PydanticCustomError("rule", "{message}", {"message": "; ".join(messages)})


@dataclass(frozen=True)
class Check:
    """A rule over a single value, as an annotation of its type."""

    rule: Rule

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        written = handler(schema)
        return {**written, VALIDATIONS: [*written.get(VALIDATIONS, ()), *build_validations([self.rule])]}

    def _check(self, value: Any) -> Any:
        if not self.rule.holds(value):
            raise refuse(self.rule.message)
        return value


@dataclass(frozen=True)
class CheckIntOrString(Check):
    """The same for a value that is either a whole number or a text, such as 1 and "50%".

    The rule alone decides: a union would report one fault twice, once for each type it is not.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {INT_OR_STRING: True, VALIDATIONS: build_validations([self.rule])}


class Part(BaseModel):
    """One object of the manifest: camelCase there, snake_case here, nothing unknown, no guessing of types."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )
    RULES: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        written = handler(schema)
        if cls.RULES:
            # The handler may answer with a reference; the rules belong to what it names.
            handler.resolve_ref_schema(written)[VALIDATIONS] = build_validations(cls.RULES)
        return written

    @model_validator(mode="before")
    @classmethod
    def _forget_nulls(cls, values: Any) -> Any:
        """Take ``field: null`` for a field left out, as the API server does."""
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if value is not None}
        return values

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = [rule.message for rule in self.RULES if not rule.holds(self)]
        if broken:
            raise refuse(*broken)
        return self


_WORDS = {
    "missing": "is required",
    "extra_forbidden": "is not a field of a pool; check its spelling and its indentation",
}


def explain(fault: ErrorDetails) -> str:
    """Return one fault with its place as it is written in the manifest."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"])
    return f"spec{place}: {_WORDS.get(fault['type'], fault['msg'])}"
