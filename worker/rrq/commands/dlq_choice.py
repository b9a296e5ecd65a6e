"""Which dead letters a command that changes them is about."""

from dataclasses import dataclass

from rrq.commands.job_choice import JobFilter
from rrq.inspect.dead_letters import DeadLetter, DeadLetterScan, find_dead_letter
from rrq.store import JobStore


@dataclass(frozen=True)
class LetterChoice:
    """What the user asked for; without ids the list is searched."""

    dlq_name: str
    wanted: JobFilter
    job_ids: tuple[str, ...] = ()
    limit: int | None = None


async def find_letters(store: JobStore, choice: LetterChoice) -> list[DeadLetter]:
    """Return the entries to take, oldest first. The ids are fixed before the first one moves.

    A job that fails again at once is back on the list before the end, and must not go round for ever.
    """
    if choice.job_ids:
        found = [await find_dead_letter(store, choice.dlq_name, job_id) for job_id in choice.job_ids]
        return [letter for letter in found if letter is not None and _is_wanted(store, choice, letter)]
    wanted: list[DeadLetter] = []
    jobs = 0
    async for letter in DeadLetterScan(store, choice.dlq_name, oldest_first=True):
        if _is_wanted(store, choice, letter):
            wanted.append(letter)
            jobs += letter.job is not None
            if jobs == choice.limit:
                break
    return wanted


def _is_wanted(store: JobStore, choice: LetterChoice, letter: DeadLetter) -> bool:
    # Without a filter what has expired is wanted too: to be dropped from the list.
    return choice.wanted.is_open if letter.job is None else choice.wanted.matches(store, letter.job)
