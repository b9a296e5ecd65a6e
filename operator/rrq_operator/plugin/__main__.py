"""The program ``kubectl-rrq``: checks that its extra is installed, then loads the commands."""

from rrq.runtime.installation import require_extra


def main() -> None:
    require_extra("kubectl rrq", "operator")
    from rrq_operator.plugin.cli import rrq

    rrq(prog_name="kubectl rrq")


if __name__ == "__main__":
    main()
