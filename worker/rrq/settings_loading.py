"""Loads the settings of a command: from an option, the environment, a .env file or defaults.

Settings that cannot be used raise SettingsError, which the command line prints (``commands/lazy_group.py``).
"""

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from rrq.exc import SettingsError
from rrq.registry import JobRegistry
from rrq.runtime.suggestions import find_meant, suggest
from rrq.settings import RRQSettings

#: python-dotenv comes with pydantic-settings today, but that may change.
DOTENV_AVAILABLE = importlib.util.find_spec("dotenv") is not None

PATH_VARIABLE = "RRQ_SETTINGS"
#: The operator sets it to 1: then the pool decides which Redis its workers use and how many jobs run at once, and the
#: settings of the application do not.
ENVIRONMENT_WINS = "RRQ_ENVIRONMENT_WINS"


class SettingsSource(StrEnum):
    OPTION = "--settings"
    VARIABLE = "RRQ_SETTINGS"
    DOTENV = ".env"
    DEFAULTS = "defaults"


@dataclass(frozen=True)
class SettingsLocation:
    """Where settings come from, and so what to change to get others."""

    source: SettingsSource
    path: str | None
    """Dotted path of the object; None for settings from the environment and defaults."""


def locate_settings(path: str | None) -> SettingsLocation:
    """Return where the settings are, without importing them; reads the nearest .env file first."""
    from_dotenv = _load_dotenv()
    if path is not None:
        return SettingsLocation(SettingsSource.OPTION, path)
    path = os.environ.get(PATH_VARIABLE)
    if path is not None:
        source = SettingsSource.DOTENV if PATH_VARIABLE in from_dotenv else SettingsSource.VARIABLE
        return SettingsLocation(source, path)
    has_values = any(name.upper().startswith("RRQ_") for name in from_dotenv)
    return SettingsLocation(SettingsSource.DOTENV if has_values else SettingsSource.DEFAULTS, None)


def load_settings(path: str | None) -> RRQSettings:
    """Return the settings of a command; ``path`` is the value of its ``--settings``.

    Raises SettingsError when they cannot be loaded.
    """
    location = locate_settings(path)
    _warn_of_misspelled_variables()
    if location.path is None:
        return _build_settings()
    settings = _import_settings(location.path)
    return _with_environment(settings) if os.environ.get(ENVIRONMENT_WINS) == "1" else settings


def _warn_of_misspelled_variables() -> None:
    """Warn of each variable that is nearly a setting: it has no effect, and nothing else would say so."""
    for variable in sorted(os.environ):
        name = variable.removeprefix("RRQ_").lower()
        if not variable.startswith("RRQ_") or name in RRQSettings.model_fields:
            continue
        # Kubernetes sets RRQ_REDIS_PORT and the like for a Service called rrq-redis.
        if "_service_" in name or "_port" in name or name.endswith("_host"):
            continue
        meant = find_meant(name, RRQSettings.model_fields)
        if meant is not None:
            sys.stderr.write(
                f"WARNING: {variable} is no variable of RRQ and has no effect. Did you mean RRQ_{meant.upper()}?\n"
            )


def require_registry(settings: RRQSettings) -> JobRegistry:
    """Return the handlers of an application that a worker runs. Raises SettingsError when it has none."""
    if not settings.job_registry:
        raise SettingsError(
            "No 'job_registry'. You must provide a JobRegistry instance in settings. Write "
            "RRQSettings(job_registry=…), and name that object by --settings or RRQ_SETTINGS, such as "
            "shop.jobs.settings."
        )
    return settings.job_registry


def _load_dotenv() -> set[str]:
    """Add the variables of the nearest .env file upwards; returns those that were not set before."""
    if not DOTENV_AVAILABLE:
        return set()
    from dotenv import find_dotenv, load_dotenv

    before = set(os.environ)
    file = find_dotenv(usecwd=True)
    if file:
        try:
            load_dotenv(file, override=False)
        except (OSError, ValueError) as error:
            raise SettingsError(f"Could not read {_shown(file)}: {error}") from error
    return set(os.environ) - before


def _import_settings(path: str) -> RRQSettings:
    module_name, _, attribute = path.rpartition(".")
    if not module_name or ":" in path or "/" in path:
        raise _unusable(path, _describe_misspelled_path(path))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise SettingsError(
            f"Could not import settings object '{path}'. {_advise_on_import(module_name, error)}\n"
            f"Cause: {error}"
        ) from error
    except ValidationError as error:
        raise _unusable(path, f"{describe_faults(error)}. {_WHERE_VALUES_COME_FROM}") from error
    # A settings module is code of the application and may raise anything.
    except Exception as error:
        raise _unusable(path, str(error) or type(error).__name__) from error
    settings: Any = getattr(module, attribute, None)
    if settings is None:
        raise _unusable(path, _describe_missing_name(module, module_name, attribute))
    if isinstance(settings, type) or not hasattr(settings, "redis_dsn"):
        raise _unusable(path, _describe_wrong_type(settings, module, module_name))
    return settings  # type: ignore[no-any-return]  # whatever the application calls its settings


_WHERE_VALUES_COME_FROM = "A value comes from the code or, where that leaves it out, from its RRQ_* variable"


def _unusable(path: str, reason: str) -> SettingsError:
    return SettingsError(f"Unexpected error processing settings object '{path}': {reason}")


def _describe_misspelled_path(path: str) -> str:
    dotted = path.replace(":", ".").replace("/", ".").removesuffix(".py").strip(".")
    example = dotted if "." in dotted and not path.endswith(".py") else f"{dotted or 'shop'}.settings"
    return f"a settings path is MODULE.NAME with dots, such as {example}"


def _advise_on_import(module_name: str, error: ImportError) -> str:
    """Return what to do: the module itself may be missing, or a module that it imports."""
    missing = error.name or ""
    is_gone = isinstance(error, ModuleNotFoundError)
    if is_gone and (module_name == missing or module_name.startswith(f"{missing}.")):
        return "Make sure it is in PYTHONPATH."
    return "It was found, but a module that it imports was not: install that module, or make sure it is in PYTHONPATH."


def _describe_missing_name(module: ModuleType, module_name: str, attribute: str) -> str:
    reason = f"module '{module_name}' has no attribute '{attribute}'"
    if hasattr(module, attribute):
        reason = f"'{attribute}' of module '{module_name}' is None"
    return f"{reason}.{suggest(attribute, vars(module))} {_list_settings(module, module_name)}"


def _describe_wrong_type(found: object, module: ModuleType, module_name: str) -> str:
    reason = f"it is of type {type(found).__name__}, not an RRQSettings"
    if isinstance(found, type):
        reason = f"it is the class {found.__name__}, not an object of it"
    return f"{reason}. {_list_settings(module, module_name)}"


def _list_settings(module: ModuleType, module_name: str) -> str:
    names = [
        f"{module_name}.{name}" for name, value in vars(module).items() if isinstance(value, RRQSettings)
    ]
    if names:
        return f"Settings in that module: {', '.join(names)}"
    return "That module has no settings: write settings = RRQSettings(job_registry=…) in it"


def _with_environment(settings: RRQSettings) -> RRQSettings:
    """Override each value for which there is an RRQ_* variable."""
    from_environment = _build_settings()
    for field in type(from_environment).model_fields:
        if f"RRQ_{field.upper()}" in os.environ:
            # In the object of the application, not in a copy: a handler that builds a client from these settings must
            # enqueue to the Redis of its worker.
            setattr(settings, field, getattr(from_environment, field))
    return settings


def _build_settings() -> RRQSettings:
    try:
        return RRQSettings()
    except ValidationError as error:
        raise SettingsError(
            f"The environment does not make valid settings. {describe_faults(error, 'RRQ_')}"
        ) from error
    except ValueError as error:
        # From a list or a table, which a variable has as JSON.
        raise SettingsError(
            f"The environment does not make valid settings. {error}: write its value as JSON."
        ) from error


def describe_faults(error: ValidationError, prefix: str = "") -> str:
    """Return which fields are wrong and why, without the values, because one may be a DSN with a password."""
    return "; ".join(
        f"{_name_field(fault['loc'], prefix)}{fault['msg'].removeprefix('Value error, ')}"
        for fault in error.errors(include_url=False, include_input=False)
    )


def _name_field(place: tuple[int | str, ...], prefix: str) -> str:
    name = ".".join(map(str, place))
    if not name:
        return ""
    return f"{prefix}{name.upper() if prefix else name}: "


def _shown(file: str) -> str:
    """Return the path, relative to the working directory if it is below it."""
    return os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
