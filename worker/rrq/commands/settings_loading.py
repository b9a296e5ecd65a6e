"""Where the settings of a command come from: an option, the environment, a .env file or defaults."""

import importlib
import importlib.util
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rrq.commands.refusal import Refusal
from rrq.registry import JobRegistry
from rrq.settings import RRQSettings

#: python-dotenv comes with pydantic-settings today, but nothing promises that it always will.
DOTENV_AVAILABLE = importlib.util.find_spec("dotenv") is not None

PATH_VARIABLE = "RRQ_SETTINGS"
#: Set to 1 by the operator: which Redis a pool uses, and how many jobs at once, is then said by the pool and
#: not by whatever the application wrote into its settings.
ENVIRONMENT_WINS = "RRQ_ENVIRONMENT_WINS"


class SettingsSource(StrEnum):
    OPTION = "--settings"
    VARIABLE = "RRQ_SETTINGS"
    DOTENV = ".env"
    DEFAULTS = "defaults"


@dataclass(frozen=True)
class SettingsLocation:
    """Where settings come from: what the user has to change to get others."""

    source: SettingsSource
    path: str | None
    """Dotted path of the object, or None when it was built from environment and defaults."""


def locate_settings(path: str | None) -> SettingsLocation:
    """Tell where the settings are, without importing anything; a .env file is read on the way."""
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
    """Return the settings for a command; ``path`` is the value of its ``--settings``.

    Raises Refusal when there are none to be had.
    """
    location = locate_settings(path)
    if location.path is None:
        return _build_settings()
    settings = _import_settings(location.path)
    return _with_environment(settings) if os.environ.get(ENVIRONMENT_WINS) == "1" else settings


def require_registry(settings: RRQSettings) -> JobRegistry:
    """Return the handlers of an application that is to be run; Refusal when it names none."""
    if not settings.job_registry:
        raise Refusal("ERROR: No 'job_registry'. You must provide a JobRegistry instance in settings.")
    return settings.job_registry


def _load_dotenv() -> set[str]:
    """Add the variables of the nearest .env upwards; returns those that were not set before."""
    if not DOTENV_AVAILABLE:
        return set()
    from dotenv import find_dotenv, load_dotenv

    before = set(os.environ)
    file = find_dotenv(usecwd=True)
    if file:
        try:
            load_dotenv(file, override=False)
        except (OSError, ValueError) as error:
            raise Refusal(f"ERROR: Could not read {_shown(file)}: {error}") from error
    return set(os.environ) - before


def _import_settings(path: str) -> RRQSettings:
    module_name, _, attribute = path.rpartition(".")
    try:
        settings: Any = getattr(importlib.import_module(module_name), attribute)
        if not hasattr(settings, "redis_dsn"):
            raise TypeError(f"it is a {type(settings).__name__}, not an RRQSettings")
    except ImportError as error:
        raise Refusal(
            f"ERROR: Could not import settings object '{path}'. Make sure it is in PYTHONPATH.\n"
            # The module itself may be there and one that it imports may be missing.
            f"Cause: {error}"
        ) from error
    # A settings module is foreign code and may raise anything.
    except Exception as error:
        raise Refusal(f"ERROR: Unexpected error processing settings object '{path}': {error}") from error
    return settings  # type: ignore[no-any-return]  # whatever the application calls its settings


def _with_environment(settings: RRQSettings) -> RRQSettings:
    """Return the settings with every value that an RRQ_* variable names taken from there."""
    from_environment = _build_settings()
    for field in type(from_environment).model_fields:
        if f"RRQ_{field.upper()}" in os.environ:
            # In the object of the application, not in a copy: a handler that enqueues with a client built from
            # its own settings means the Redis that its worker uses.
            setattr(settings, field, getattr(from_environment, field))
    return settings


def _build_settings() -> RRQSettings:
    try:
        return RRQSettings()
    except ValidationError as error:
        # Without the values: one of them may be a DSN with a password.
        faults = "; ".join(
            f"RRQ_{'.'.join(map(str, fault['loc'])).upper()}: {fault['msg']}" for fault in error.errors()
        )
        raise Refusal(f"ERROR: The environment does not make valid settings. {faults}") from error
    except ValueError as error:
        raise Refusal(f"ERROR: The environment does not make valid settings. {error}") from error


def _shown(file: str) -> str:
    """Return the path relative to the working directory where that is shorter."""
    return os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
