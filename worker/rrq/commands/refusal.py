"""How a command says no: exit code 1 and one clear message on stderr."""

import click

from rrq.commands.formatting import printable
from rrq.runtime.masking import mask_secrets


class Refusal(click.ClickException):
    """Ends the command with exit code 1 and prints its message, as it is, on stderr."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        click.echo(harmless(self.message), err=True)


def harmless(message: str) -> str:
    """Return a message that is safe to print, its lines kept.

    An exception of the application may quote a password, and an argument may steer the terminal.
    """
    return "\n".join(printable(line) for line in mask_secrets(message).split("\n"))
