"""The command line: which command lives where.

Commands are imported only when they are called: ``rrq check`` runs as a probe every few seconds, and must not load the
live views.
"""

import click

from rrq.commands.lazy_group import LazyGroup
from rrq.commands.options import version_option

__all__ = ["rrq"]

_COMMANDS = {
    "audit": "rrq.commands.flow:audit",
    "batch": "rrq.commands.batch:batch",
    "check": "rrq.commands.check:check",
    "completion": "rrq.cli:completion",
    "dashboard": "rrq.commands.dashboard:dashboard",
    "debug": "rrq.commands.debug:debug",
    "dlq": "rrq.commands.dlq:dlq",
    "flow": "rrq.commands.flow:flow",
    "job": "rrq.commands.job:job",
    "limit": "rrq.commands.flow:limit",
    "monitor": "rrq.commands.monitor:monitor",
    "queue": "rrq.commands.queue:queue",
    "worker": "rrq.commands.worker:worker",
    "pause": "rrq.commands.flow:pause",
    "resume": "rrq.commands.flow:resume",
    "disable": "rrq.commands.flow:disable",
    "enable": "rrq.commands.flow:enable",
}


@click.group(cls=LazyGroup, places=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
def rrq() -> None:
    """RRQ: Reliable Redis Queue."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    To install it permanently:
      bash  rrq completion bash > ~/.local/share/bash-completion/completions/rrq
      zsh   rrq completion zsh > ~/.zfunc/_rrq    (with ~/.zfunc in fpath, before compinit)
      fish  rrq completion fish > ~/.config/fish/completions/rrq.fish
    For this session only: source <(rrq completion bash)
    """
    from click.shell_completion import get_completion_class

    script_class = get_completion_class(shell)
    if script_class is None:  # pragma: no cover  click has had these three since version 8.0
        raise click.ClickException(f"This version of click cannot complete for {shell}.")
    click.echo(script_class(ctx.find_root().command, {}, "rrq", "_RRQ_COMPLETE").source())
