"""The one way in which a command says no."""

import click

from rrq.commands.formatting import printable
from rrq.masking import mask_secrets


class Refusal(click.ClickException):
    """Ends the command with exit code 1 and its message, as it is, on stderr."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        # What an application's own code raised may quote a password, and an argument may steer the terminal.
        lines = mask_secrets(self.message).split("\n")
        click.echo("\n".join(printable(line) for line in lines), err=True)
