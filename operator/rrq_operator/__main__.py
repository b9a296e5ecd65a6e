"""The program ``rrq-operator``, which is ``python -m rrq_operator`` as well: asks for its extra, then loads the commands."""

from rrq.runtime.installation import require_extra


def main() -> None:
    require_extra("rrq-operator", "operator")
    from rrq_operator.cli import main as rrq_operator

    rrq_operator(prog_name="rrq-operator")


if __name__ == "__main__":
    main()
