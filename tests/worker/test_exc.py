"""What callers may catch, and what the messages tell them."""

import pickle

import pytest

from rrq import exc


def test_one_except_clause_catches_every_error_of_rrq_but_the_one_that_0_7_left_out() -> None:
    others = {name for name in exc.__all__ if not issubclass(getattr(exc, name), exc.RRQError)}
    assert others == {"MaxRetriesExceeded"}
    assert exc.MaxRetriesExceeded.__mro__[1] is Exception
    assert issubclass(exc.UnserializableArguments, TypeError)
    assert issubclass(exc.InvalidJob, ValueError)


def test_retry_job_has_a_default_message_and_no_delay() -> None:
    error = exc.RetryJob()
    assert (str(error), error.defer_seconds) == ("Job requested retry", None)


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
