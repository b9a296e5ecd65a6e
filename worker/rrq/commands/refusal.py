"""The one way in which a command says no."""

import click

from rrq.commands.formatting import printable
from rrq.runtime.masking import mask_secrets


class Refusal(click.ClickException):
    """Ends the command with exit code 1 and its message, as it is, on stderr."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        click.echo(harmless(self.message), err=True)


def harmless(message: str) -> str:
    """Return a message fit for a terminal, its lines kept.

    What an application's own code raised may quote a password, and an argument may steer the terminal.
    """
    return "\n".join(printable(line) for line in mask_secrets(message).split("\n"))
