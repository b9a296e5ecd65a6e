"""Where a command takes its settings from, and what it says when it cannot."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from rrq.exc import SettingsError
from rrq.settings import RRQSettings
from rrq.settings_loading import SettingsSource, load_settings, locate_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder without a .env, and an environment that is put back afterwards."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    def write(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


SETTINGS = "from rrq import RRQSettings\nsettings = RRQSettings(redis_dsn='redis://{host}/0')\n"


def test_defaults_come_last_and_the_environment_applies_to_them() -> None:
    location = locate_settings(None)
    assert (location.source, location.path) == (SettingsSource.DEFAULTS, None)
    assert load_settings(None) == RRQSettings()
    os.environ["RRQ_REDIS_DSN"] = "redis://from-environment/0"
    assert load_settings(None).redis_dsn == "redis://from-environment/0"


def test_the_option_beats_the_variable(write_module: Callable[[str, str], str]) -> None:
    write_module("shop_a", SETTINGS.format(host="a"))
    write_module("shop_b", SETTINGS.format(host="b"))
    os.environ["RRQ_SETTINGS"] = "shop_b.settings"
    location = locate_settings("shop_a.settings")
    assert (location.source, location.path) == (SettingsSource.OPTION, "shop_a.settings")
    assert "shop_a" not in sys.modules  # told without importing it
    assert load_settings("shop_a.settings") is sys.modules["shop_a"].settings
    assert locate_settings(None).source is SettingsSource.VARIABLE
    assert load_settings(None).redis_dsn == "redis://b/0"


def test_a_dotenv_file_is_found_upwards_and_overrides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("DATABASE=elsewhere\n")
    assert locate_settings(None).source is SettingsSource.DEFAULTS
    dotenv.write_text("RRQ_REDIS_DSN=redis://file/0\nRRQ_WORKER_CONCURRENCY=7\n")
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    os.environ["RRQ_REDIS_DSN"] = "redis://environment/0"
    assert locate_settings(None).source is SettingsSource.DOTENV
    settings = load_settings(None)
    assert (settings.redis_dsn, settings.worker_concurrency) == ("redis://environment/0", 7)

    dotenv.write_text("RRQ_SETTINGS=shop_c.settings\n")
    location = locate_settings(None)
    assert (location.source, location.path) == (SettingsSource.DOTENV, "shop_c.settings")
    dotenv.write_bytes(b"RRQ_KEY_PREFIX=\xff\xfe\n")
    with pytest.raises(SettingsError, match=r"Could not read .*\.env: "):
        load_settings(None)


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings("no_such_shop.settings")
    lines = str(refusal.value).splitlines()
    assert lines[0] == (
        "Could not import settings object 'no_such_shop.settings'. Make sure it is in PYTHONPATH."
    )
    assert lines[1] == "Cause: No module named 'no_such_shop'"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (
            "shop_d.setings",
            (
                "module 'shop_d' has no attribute 'setings'. Did you mean 'settings'? "
                "Settings in that module: shop_d.settings"
            ),
        ),
        (
            "shop_f.settings",
            (
                "module 'shop_f' has no attribute 'settings'. That module has no settings: write "
                "settings = RRQSettings(job_registry=…) in it"
            ),
        ),
        ("settings", "a settings path is MODULE.NAME with dots, such as settings.settings"),
        ("shop_d:settings", "a settings path is MODULE.NAME with dots, such as shop_d.settings"),
        ("shop/jobs.py", "a settings path is MODULE.NAME with dots, such as shop.jobs.settings"),
        (
            "shop_d.number",
            "it is of type int, not an RRQSettings. Settings in that module: shop_d.settings",
        ),
        (
            "shop_d.RRQSettings",
            "it is the class RRQSettings, not an object of it. Settings in that module: shop_d.settings",
        ),
        ("shop_e.settings", "division by zero"),
        (
            "shop_g.settings",
            (
                "worker_concurrency: Input should be a valid integer, unable to parse string as an integer. A value comes "
                "from the code or, where that leaves it out, from its RRQ_* variable"
            ),
        ),
    ],
)
def test_settings_that_cannot_be_used_are_explained(
    path: str, reason: str, write_module: Callable[[str, str], str]
) -> None:
    write_module("shop_d", SETTINGS.format(host="d") + "number = 5\n")
    write_module("shop_e", "1 / 0\n")
    write_module("shop_f", "")
    write_module("shop_g", "from rrq import RRQSettings\nsettings = RRQSettings(worker_concurrency='ten')\n")
    with pytest.raises(SettingsError) as refusal:
        load_settings(path)
    assert str(refusal.value) == (f"Unexpected error processing settings object '{path}': {reason}")


@pytest.mark.parametrize("line", ["import no_such_library", "from shop_h import nothing"])
def test_a_missing_import_of_a_module_is_not_blamed_on_the_module(
    line: str, write_module: Callable[[str, str], str]
) -> None:
    write_module("shop_h", f"{line}\n")
    with pytest.raises(
        SettingsError, match="It was found, but a module that it imports was not: install that module"
    ):
        load_settings("shop_h.settings")


def test_a_variable_that_is_nearly_a_setting_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    os.environ |= {
        "RRQ_REDIS_URL": "redis://secret",
        "RRQ_REDIS_PORT": "tcp://10.0.0.1:6379",
        "RRQ_LOG_LEVEL": "INFO",
    }
    load_settings(None)
    assert capsys.readouterr().err == (
        "WARNING: RRQ_REDIS_URL is no variable of RRQ and has no effect. Did you mean RRQ_REDIS_DSN?\n"
    )


def test_invalid_variables_are_named_without_their_values() -> None:
    os.environ["RRQ_WORKER_CONCURRENCY"] = "secret-ish"
    with pytest.raises(
        SettingsError, match="RRQ_WORKER_CONCURRENCY: Input should be a valid integer"
    ) as refusal:
        load_settings(None)
    assert "secret-ish" not in str(refusal.value)


def test_the_environment_wins_over_the_application_where_it_is_asked_to(
    write_module: Callable[[str, str], str],
) -> None:
    module = write_module("pooled_settings", SETTINGS.format(host="in-code"))
    os.environ["RRQ_REDIS_DSN"] = "redis://of-the-pool/0"
    assert load_settings(f"{module}.settings").redis_dsn == "redis://in-code/0"
    os.environ["RRQ_ENVIRONMENT_WINS"] = "1"
    settings = load_settings(f"{module}.settings")
    assert settings.redis_dsn == "redis://of-the-pool/0"
    assert settings.worker_concurrency == RRQSettings().worker_concurrency
    # A client that a handler builds from the settings of its application goes to the same Redis.
    assert settings is sys.modules[module].settings
