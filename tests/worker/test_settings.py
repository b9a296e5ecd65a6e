"""Defaults, environment variables and what is checked."""

import re
from typing import Any

import pytest
from pydantic import Field, ValidationError

from rrq.settings import RRQSettings

DEFAULTS_OF_RRQ_0_7: dict[str, Any] = {
    "on_startup": None,
    "on_shutdown": None,
    "redis_dsn": "redis://localhost:6379/0",
    "default_queue_name": "rrq:queue:default",
    "default_dlq_name": "rrq:dlq:default",
    "default_max_retries": 5,
    "default_job_timeout_seconds": 300,
    "default_lock_timeout_extension_seconds": 60,
    "default_result_ttl_seconds": 86400,
    "default_poll_delay_seconds": 0.1,
    "default_unique_job_lock_ttl_seconds": 21600,
    "worker_concurrency": 10,
    "worker_health_check_interval_seconds": 60,
    "base_retry_delay_seconds": 5.0,
    "max_retry_delay_seconds": 3600,
    "worker_shutdown_grace_period_seconds": 10.0,
    "job_registry": None,
    "cron_jobs": [],
    "event_handlers": [],
    "expected_job_ttl": 30,
    "metrics_exporter": None,
}


def test_settings_of_rrq_0_7_have_their_defaults() -> None:
    settings = RRQSettings()
    assert {name: getattr(settings, name) for name in DEFAULTS_OF_RRQ_0_7} == DEFAULTS_OF_RRQ_0_7


def test_no_setting_clashes_with_the_variables_kubernetes_injects_for_services() -> None:
    clashes = re.compile(r"_(host|port)$|_service_(host|port)|_port_\d")
    assert not [name for name in RRQSettings.model_fields if clashes.search(name)]


def test_every_number_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = RRQSettings().model_dump()
    numbers = [name for name, value in defaults.items() if isinstance(value, int | float)]
    # Seven leaves the lease longer than its renewal.
    for name in numbers:
        monkeypatch.setenv(f"RRQ_{name.upper()}", "7")
    settings = RRQSettings()
    assert {name: getattr(settings, name) for name in numbers} == dict.fromkeys(numbers, 7)


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("RRQ_REDIS_DSN", "rediss://cache:6380/2", "rediss://cache:6380/2"),
        ("RRQ_KEY_PREFIX", "{shop}:", "{shop}:"),
        ("RRQ_EVENT_HANDLERS", '["shop.hooks.Audit"]', ["shop.hooks.Audit"]),
        ("RRQ_METRICS_EXPORTER", "statsd", "statsd"),
        ("RRQ_WORKER_HEALTH_CHECK_INTERVAL_SECONDS", "0.5", 0.5),
        ("rrq_worker_concurrency", "3", 3),
    ],
)
def test_other_settings_are_read_from_the_environment(
    variable: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)

    assert getattr(RRQSettings(), variable.lower().removeprefix("rrq_")) == value


def test_a_keyword_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRQ_WORKER_CONCURRENCY", "3")
    monkeypatch.setenv("RRQ_REDIS_PORT", "tcp://10.0.0.1:6379")  # of a Service: none of ours
    assert RRQSettings(worker_concurrency=4).worker_concurrency == 4

    monkeypatch.setenv("RRQ_WORKER_CONCURRENCY", "many")
    with pytest.raises(ValidationError, match="worker_concurrency"):
        RRQSettings()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("from_the_future", None),
        ("redis_url", "redis_dsn"),
        ("worker_concurency", "worker_concurrency"),
        ("registry", "job_registry"),
    ],
)
def test_an_unknown_keyword_is_ignored_and_told_at_its_line(written: str, meant: str | None) -> None:
    given: dict[str, Any] = {written: None}
    hint = "so it is ignored" if meant is None else f"Did you mean '{meant}'?"
    with pytest.warns(UserWarning, match=f"no setting '{written}'.* {hint}") as told:
        assert not hasattr(RRQSettings(**given), "from_the_future")
    assert told[0].filename == __file__


def test_settings_of_an_application_may_have_fields_and_names_of_their_own() -> None:
    class ShopSettings(RRQSettings):
        tax_rate: float = Field(default=0.0, alias="taxes")

    given: dict[str, Any] = {"taxes": 0.19}
    # A warning would be an error here.
    assert ShopSettings(**given).tax_rate == 0.19


def test_an_unknown_field_in_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = '{"function_name": "report", "schedule": "0 3 * * *"'
    monkeypatch.setenv("RRQ_CRON_JOBS", f"[{entry}}}]")
    assert RRQSettings().cron_jobs[0].schedule == "0 3 * * *"
    monkeypatch.setenv("RRQ_CRON_JOBS", f'[{entry}, "time_zone": "Asia/Tokyo"}}]')
    monkeypatch.setenv("RRQ_LIMITS", '{"function:report": {"concurrency": 2, "per_tenant": 1}}')
    with pytest.raises(ValidationError, match=r"(?s)time_zone.*per_tenant"):
        RRQSettings()


def test_the_lease_is_renewed_three_times_in_its_life_unless_told_otherwise() -> None:
    settings = RRQSettings(worker_lease_seconds=30)
    assert settings.lease_renewal_seconds == 10
    # Applications assign to living settings, which nothing validates; it is never renewed too rarely.
    settings.worker_lease_seconds, settings.worker_lease_renewal_seconds = 5, 6
    assert settings.lease_renewal_seconds == 2
    settings.worker_lease_renewal_seconds = 1
    assert settings.lease_renewal_seconds == 1


def test_plain_handlers_get_as_many_threads_as_there_are_slots() -> None:
    assert RRQSettings(worker_concurrency=7).sync_handler_threads == 7
    assert RRQSettings(worker_concurrency=7, worker_sync_handler_threads=2).sync_handler_threads == 2


def test_a_key_prefix_ends_with_a_colon_and_has_at_most_one_hash_tag() -> None:
    for prefix in ("rrq:", "shop:jobs:", "{shop}:", "a{shop}b:"):
        assert RRQSettings(key_prefix=prefix).key_prefix == prefix
    for prefix in ("", "rrq", "my shop:", "{}:", "{shop:", "}{:"):
        with pytest.raises(ValidationError, match="key_prefix"):
            RRQSettings(key_prefix=prefix)


@pytest.mark.parametrize("text", ["a:1,b:2", " a:1 , b:2 ,", '["a:1", "b:2"]'])
def test_sentinels_come_as_comma_list_or_json(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRQ_REDIS_SENTINEL_HOSTS", text)
    monkeypatch.setenv("RRQ_REDIS_SENTINEL_SERVICE", "shop")

    assert RRQSettings().redis_sentinel_hosts == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"redis_sentinel_hosts": "[a:1"}, "redis_sentinel_hosts"),
        ({"redis_sentinel_hosts": ["a:1"]}, "needs redis_sentinel_service"),
        ({"worker_lease_renewal_seconds": 6.1}, r"may be at most 6, which is 0\.4 of worker_lease_seconds"),
        ({"worker_lease_seconds": 0}, "worker_lease_seconds"),
        ({"worker_crash_limit": 0}, "worker_crash_limit"),
        ({"max_job_payload_bytes": -1}, "max_job_payload_bytes"),
        ({"redis_socket_timeout_seconds": 0}, "redis_socket_timeout_seconds"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        RRQSettings.model_validate(given)
