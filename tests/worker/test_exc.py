"""What callers may catch, and what the messages tell them."""

import pickle

import pytest

from rrq import exc


@pytest.mark.parametrize("name", [name for name in exc.__all__ if name != "MaxRetriesExceeded"])
def test_one_except_clause_catches_every_error_of_rrq(name: str) -> None:
    assert issubclass(getattr(exc, name), exc.RRQError)


@pytest.mark.parametrize("name", exc.__all__)
def test_the_docstring_draws_every_exception(name: str) -> None:
    assert f" {name} " in (exc.__doc__ or "").replace("\n", " ")


def test_max_retries_exceeded_is_a_plain_exception() -> None:
    assert exc.MaxRetriesExceeded.__mro__[1] is Exception


def test_retry_job_has_a_default_message_and_no_delay() -> None:
    error = exc.RetryJob()

    assert str(error) == "Job requested retry"
    assert error.defer_seconds is None


def test_retry_job_keeps_message_and_delay() -> None:
    error = exc.RetryJob("rate limited", defer_seconds=2.5)

    assert str(error) == "rate limited"
    assert error.defer_seconds == 2.5


def test_bad_arguments_can_be_caught_as_type_error() -> None:
    assert issubclass(exc.UnserializableArguments, TypeError)
    assert issubclass(exc.UnserializableArguments, exc.EnqueueError)


def test_an_invalid_job_can_be_caught_as_value_error() -> None:
    assert issubclass(exc.InvalidJob, ValueError)
    assert issubclass(exc.InvalidJob, exc.EnqueueError)


def test_an_unreadable_job_names_itself_and_the_reason() -> None:
    error = exc.UnreadableJob("j1", "the field job_args is not JSON")

    assert (error.job_id, error.reason) == ("j1", "the field job_args is not JSON")
    assert "j1" in str(error)
    assert "the field job_args is not JSON" in str(error)


def test_an_unreachable_redis_says_where_why_and_what_to_do() -> None:
    text = str(exc.RedisUnavailable("redis.shop:6379", "connection refused"))

    assert "redis.shop:6379" in text
    assert "connection refused" in text
    assert "RRQ_REDIS_DSN" in text


def test_unconfirmed_jobs_are_named_and_not_to_be_enqueued_again_blindly() -> None:
    error = exc.NotDurable("replica", 2.0, [f"job-{number}" for number in range(8)])

    assert error.job_ids == tuple(f"job-{number}" for number in range(8))
    assert "job-0, job-1, job-2, job-3, job-4 and 3 more" in str(error)
    assert "look at the status of job_ids" in str(error)
    assert "only those that are gone" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        exc.RetryJob("later", defer_seconds=3.0),
        exc.UnreadableJob("j1", "because"),
        exc.RedisUnavailable("host:1", "refused"),
        exc.NotDurable("replica", 2.0),
        exc.NotDurable("fsync", 2.0, ["a", "b"]),
        exc.UnserializableArguments("no"),
        exc.InvalidJob("no"),
        exc.JobFailed("j1", "no such customer"),
        exc.JobCancelled("j1"),
        exc.JobUnfinished("j1", 2.5, "PENDING"),
    ],
)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
