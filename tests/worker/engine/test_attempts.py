"""What a worker remembers of the outcomes that Redis has acknowledged."""

from rrq.broker.messages import ClaimedJob, Outcome, OutcomeKind
from rrq.engine.attempts import MOST_RETAINED, MOST_RETAINED_CHARACTERS, Attempt, AttemptBook
from rrq.job import Job


def ended(number: int, text: str = "null", traceback: str = "") -> tuple[ClaimedJob, Outcome]:
    token = f"incarnation.{number}"
    claimed = ClaimedJob(
        b"job", token, b"", "default", "rrq:queue:default", b"1", is_suspect=False, fields=[]
    )
    return claimed, Outcome(b"job", token, OutcomeKind.DONE, text, 3600, traceback=traceback)


def test_only_what_was_claimed_before_and_still_runs_is_counted() -> None:
    book = AttemptBook()
    attempts = [Attempt(Job(function_name="greet"), ended(number)[0], 100.0) for number in range(4)]
    for attempt in attempts:
        book.add(attempt, timeout_seconds=60.0)
    _, lost, reported, late = attempts
    moment = 101.0
    lost.is_lost = reported.is_reported = True
    late.claimed_at = moment + 1
    assert book.count_unreported_since(moment) == 1
    assert book.count_unreported_since(moment + 2) == 2


def test_the_newest_outcomes_are_kept_in_their_order() -> None:
    book = AttemptBook()
    first, second, third = (ended(number) for number in range(3))
    book.keep_reported([first, second])
    book.keep_reported([third])
    assert book.recently_reported() == [first, second, third]


def test_one_batch_of_large_results_is_not_kept_whole() -> None:
    book = AttemptBook()
    large = [ended(number, "x" * 300_000, "y" * 200_000) for number in range(100)]
    book.keep_reported(large)
    most = MOST_RETAINED_CHARACTERS // 500_000
    assert book.recently_reported() == large[-most:]


def test_very_many_outcomes_are_not_all_kept() -> None:
    book = AttemptBook()
    for number in range(MOST_RETAINED // 100 + 10):
        book.keep_reported([ended(number)] * 100)
    assert len(book.recently_reported()) == MOST_RETAINED
