"""The one way in which a command says no."""

import click


class Refusal(click.ClickException):
    """Ends the command with exit code 1 and its message, as it is, on stderr."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        click.echo(self.message, err=True)
