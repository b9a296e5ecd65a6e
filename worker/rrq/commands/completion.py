"""``rrq completion``: the script that teaches a shell our commands."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    To install it for good:
      bash  rrq completion bash > ~/.local/share/bash-completion/completions/rrq
      zsh   rrq completion zsh > ~/.zfunc/_rrq    (with ~/.zfunc in fpath, before compinit)
      fish  rrq completion fish > ~/.config/fish/completions/rrq.fish
    For this session only: source <(rrq completion bash)
    """
    script_class = get_completion_class(shell)
    if script_class is None:  # pragma: no cover  click has had these three since version 8.0
        raise click.ClickException(f"This version of click cannot complete for {shell}.")
    click.echo(script_class(ctx.find_root().command, {}, "rrq", "_RRQ_COMPLETE").source())
