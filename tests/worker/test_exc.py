"""What callers may catch, and what the messages tell them."""

import ast
import pickle
import re
from pathlib import Path

import pytest

from rrq import exc


def test_one_except_clause_catches_every_error_of_rrq_but_the_one_that_0_7_left_out() -> None:
    others = {name for name in exc.__all__ if not issubclass(getattr(exc, name), exc.RRQError)}
    assert others == {"MaxRetriesExceeded"}
    assert exc.MaxRetriesExceeded.__mro__[1] is Exception
    assert issubclass(exc.UnserializableArguments, TypeError)
    assert issubclass(exc.InvalidJob, ValueError)


def read_drawing() -> dict[str, str]:
    """Return the base that each class of the drawing hangs from."""
    bases, above = {}, ["Exception"]
    for line in (exc.__doc__ or "").splitlines():
        if branch := re.match(r"    ([│ ]*)[├└]── (\w+)", line):
            depth = len(branch[1]) // 4
            above[depth + 1 :] = [branch[2]]
            bases[branch[2]] = above[depth]
    return bases


def read_classes() -> dict[str, set[str]]:
    """Return the bases of each exception class in the library's code."""
    root = Path(exc.__file__).parent
    classes = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    found = {"Exception", "ClickException"}
    while more := {name for name, bases in classes.items() if bases & found} - found:
        found |= more
    return {name: bases for name, bases in classes.items() if name in found}


def test_the_drawing_shows_every_exception_of_the_library_below_its_base() -> None:
    drawn, classes = read_drawing(), read_classes()
    assert drawn.pop("ClickException") == "Exception"
    assert set(drawn) == set(classes)
    assert {name: base for name, base in drawn.items() if base not in classes[name]} == {}


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
