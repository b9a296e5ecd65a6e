"""Defaults, environment variables and what is checked."""

import re
from typing import Any

import pytest
from pydantic import Field, ValidationError

from rrq.cron import CronJob
from rrq.registry import JobRegistry
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
DEFAULTS_OF_OURS: dict[str, Any] = {
    "redis_socket_timeout_seconds": 5.0,
    "redis_connect_timeout_seconds": 5.0,
    "redis_max_reply_bytes": 1024 * 1024 * 1024,
    "redis_max_reply_values": None,
    "redis_tls_ca_file": None,
    "redis_sentinel_hosts": [],
    "redis_sentinel_service": None,
    "key_prefix": "rrq:",
    "durability": "server",
    "durability_wait_seconds": 2.0,
    "middleware": [],
    "default_dlq_result_ttl_seconds": 604800,
    "max_job_payload_bytes": 8 * 1024 * 1024,
    "misfire_grace_seconds": 300.0,
    "limits": {},
    "worker_queue_weights": {},
    "worker_sync_handler_threads": None,
    "worker_idle_poll_max_seconds": 1.0,
    "worker_health_check_ttl_buffer_seconds": 10,
    "worker_lease_seconds": 15.0,
    "worker_lease_renewal_seconds": None,
    "worker_crash_limit": 3,
    "worker_lost_limit": 5,
    "unknown_function_patience_seconds": 3600.0,
    "worker_loop_stall_limit_seconds": 30.0,
    "worker_redis_patience_seconds": 30.0,
    "worker_start_limit_seconds": 600.0,
    "worker_recycle_jobs": None,
    "worker_recycle_rss_bytes": None,
    "worker_burst_redis_patience_seconds": 30,
    "worker_burst_linger_seconds": 0,
}
NUMBERS = {
    name: value
    for name, value in {**DEFAULTS_OF_RRQ_0_7, **DEFAULTS_OF_OURS}.items()
    if isinstance(value, int | float)
}


@pytest.mark.parametrize(("name", "value"), {**DEFAULTS_OF_RRQ_0_7, **DEFAULTS_OF_OURS}.items())
def test_a_setting_has_its_documented_default(name: str, value: object) -> None:
    assert getattr(RRQSettings(), name) == value


def test_every_setting_is_listed_here() -> None:
    assert set(RRQSettings.model_fields) == {*DEFAULTS_OF_RRQ_0_7, *DEFAULTS_OF_OURS}


@pytest.mark.parametrize("name", RRQSettings.model_fields)
def test_every_setting_says_what_it_is_for(name: str) -> None:
    assert RRQSettings.model_fields[name].description


@pytest.mark.parametrize("name", RRQSettings.model_fields)
def test_no_setting_clashes_with_the_variables_kubernetes_injects_for_services(name: str) -> None:
    assert not re.search(r"_(host|port)$|_service_(host|port)|_port_\d", name)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_read_from_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Seven leaves the lease longer than its renewal.
    monkeypatch.setenv(f"RRQ_{name.upper()}", "7")

    assert getattr(RRQSettings(), name) == 7


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


def test_cron_jobs_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRQ_CRON_JOBS", '[{"function_name": "report", "schedule": "0 3 * * *"}]')

    [entry] = RRQSettings().cron_jobs
    assert (entry.function_name, entry.schedule) == ("report", "0 3 * * *")


def test_a_keyword_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRQ_WORKER_CONCURRENCY", "3")

    assert RRQSettings(worker_concurrency=4).worker_concurrency == 4


def test_an_unreadable_variable_is_an_error_that_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRQ_WORKER_CONCURRENCY", "many")

    with pytest.raises(ValidationError, match="worker_concurrency"):
        RRQSettings()


def test_unknown_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRQ_REDIS_PORT", "tcp://10.0.0.1:6379")
    RRQSettings()


def test_unknown_keywords_are_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="^RRQSettings has no setting 'from_the_future', so it is ignored.$"):
        settings = RRQSettings.model_validate({"from_the_future": 1})

    assert not hasattr(settings, "from_the_future")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("redis_url", "redis_dsn"), ("worker_concurency", "worker_concurrency"), ("registry", "job_registry")],
)
def test_a_misspelled_keyword_is_told_at_its_line(written: str, meant: str) -> None:
    given: dict[str, Any] = {written: None}
    with pytest.warns(UserWarning, match=f"no setting '{written}'.* Did you mean '{meant}'?") as told:
        RRQSettings(**given)
    assert told[0].filename == __file__


def test_settings_of_an_application_may_have_fields_and_names_of_their_own() -> None:
    class ShopSettings(RRQSettings):
        tax_rate: float = Field(default=0.0, alias="taxes")

    given: dict[str, Any] = {"taxes": 0.19}
    # A warning would be an error here.
    assert ShopSettings(**given).tax_rate == 0.19


def test_assignment_is_not_validated() -> None:
    settings = RRQSettings()
    settings.default_job_timeout_seconds = 0.5  # type: ignore[assignment]  # what applications really do
    settings.worker_lease_seconds = -1

    assert settings.default_job_timeout_seconds == 0.5


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (
            "RRQ_CRON_JOBS",
            '[{"function_name": "report", "schedule": "0 3 * * *", "time_zone": "Asia/Tokyo"}]',
        ),
        ("RRQ_LIMITS", '{"function:report": {"concurrency": 2, "per_tenant": 1}}'),
    ],
)
def test_an_unknown_field_in_a_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ValidationError, match=r"time_zone|per_tenant"):
        RRQSettings()


def test_cron_jobs_and_registry_are_the_objects_of_the_caller() -> None:
    entry, registry = CronJob(function_name="report", schedule="* * * * *"), JobRegistry()
    settings = RRQSettings(cron_jobs=[entry], job_registry=registry)

    assert settings.cron_jobs[0] is entry
    assert settings.job_registry is registry


def test_lists_are_not_shared_between_settings() -> None:
    RRQSettings().event_handlers.append("x")

    assert RRQSettings().event_handlers == []


def test_a_password_in_the_dsn_is_not_printed() -> None:
    settings = RRQSettings(redis_dsn="redis://:sesame@localhost/0")

    assert "sesame" not in repr(settings)
    assert "sesame" not in str(settings)


def test_the_lease_is_renewed_three_times_in_its_life_unless_told_otherwise() -> None:
    settings = RRQSettings(worker_lease_seconds=30)

    assert settings.lease_renewal_seconds == 10
    settings.worker_lease_seconds = 6
    assert settings.lease_renewal_seconds == 2
    settings.worker_lease_renewal_seconds = 1
    assert settings.lease_renewal_seconds == 1


@pytest.mark.parametrize("renewal", [6.1, 15, 20])
def test_renewals_too_rare_to_notice_an_outage_are_refused(renewal: float) -> None:
    with pytest.raises(ValidationError, match=r"may be at most 6, which is 0\.4 of worker_lease_seconds"):
        RRQSettings(worker_lease_renewal_seconds=renewal)


def test_a_live_settings_object_never_renews_too_rarely() -> None:
    settings = RRQSettings(worker_lease_renewal_seconds=6)

    settings.worker_lease_seconds = 5
    assert settings.lease_renewal_seconds == 2


def test_plain_handlers_get_as_many_threads_as_there_are_slots() -> None:
    settings = RRQSettings(worker_concurrency=7)

    assert settings.sync_handler_threads == 7
    settings.worker_sync_handler_threads = 2
    assert settings.sync_handler_threads == 2


@pytest.mark.parametrize("prefix", ["rrq:", "shop:jobs:", "{shop}:", "a{shop}b:"])
def test_a_usable_key_prefix_is_accepted(prefix: str) -> None:
    assert RRQSettings(key_prefix=prefix).key_prefix == prefix


@pytest.mark.parametrize("prefix", ["", "rrq", "my shop:", "{}:", "{shop:", "}{:"])
def test_an_unusable_key_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ValidationError, match="key_prefix"):
        RRQSettings(key_prefix=prefix)


@pytest.mark.parametrize("text", ["a:1,b:2", " a:1 , b:2 ,", '["a:1", "b:2"]'])
def test_sentinels_come_as_comma_list_or_json(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRQ_REDIS_SENTINEL_HOSTS", text)
    monkeypatch.setenv("RRQ_REDIS_SENTINEL_SERVICE", "shop")

    assert RRQSettings().redis_sentinel_hosts == ["a:1", "b:2"]


def test_broken_json_in_the_list_of_sentinels_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(ValidationError, match="redis_sentinel_hosts"):
        RRQSettings.model_validate({"redis_sentinel_hosts": "[a:1"})


def test_sentinels_without_the_name_of_the_master_are_refused() -> None:
    with pytest.raises(ValidationError, match="needs redis_sentinel_service"):
        RRQSettings(redis_sentinel_hosts=["a:1"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("worker_lease_seconds", 0),
        ("worker_crash_limit", 0),
        ("max_job_payload_bytes", -1),
        ("worker_sync_handler_threads", 0),
        ("redis_socket_timeout_seconds", 0),
        ("worker_burst_linger_seconds", -1),
    ],
)
def test_a_senseless_number_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        RRQSettings.model_validate({name: value})
