"""Options that many commands have, spelled and explained once."""

import click

from rrq.runtime.installation import describe_other_distribution
from rrq.version import __version__


def _show_version(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted or context.resilient_parsing:
        return
    click.echo(f"{context.find_root().info_name}, version {__version__}")
    if warning := describe_other_distribution():
        click.echo(f"WARNING: {warning}", err=True)
    context.exit()


version_option = click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)

settings_option = click.option(
    "--settings",
    "settings_path",
    metavar="PATH",
    help="Dotted path of the settings object, such as shop.jobs.settings. Default: RRQ_SETTINGS.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")

limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Most jobs to show."
)

offset_option = click.option(
    "--offset", type=click.IntRange(min=0), default=0, show_default=True, help="Jobs to skip."
)


max_scan_option = click.option(
    "--max-scan",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    help="Most jobs to look at; 0 for all.",
)
