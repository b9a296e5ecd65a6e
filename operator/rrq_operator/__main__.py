import click

from rrq_operator.run_command import run_command


@click.group()
def main() -> None: ...


main.add_command(run_command)
main()
