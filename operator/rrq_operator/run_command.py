"""``rrq-operator run``: the operator in a cluster."""

import asyncio
import socket
from pathlib import Path

import click

from rrq.runtime.logs import LogFormat, configure_logging

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@click.command("run")
@click.option(
    "--namespace",
    envvar="RRQ_OPERATOR_NAMESPACE",
    help="Manage the pools of this namespace only. Default: all. [env: RRQ_OPERATOR_NAMESPACE]",
)
@click.option(
    "--lease-namespace",
    envvar="POD_NAMESPACE",
    help="Namespace of the Lease of the leader. Default: the namespace of the pod. [env: POD_NAMESPACE]",
)
@click.option(
    "--lease-name",
    default="rrq-operator",
    envvar="RRQ_OPERATOR_LEASE",
    show_default=True,
    help="Name of that Lease; of the operators that share it one leads. [env: RRQ_OPERATOR_LEASE]",
)
@click.option(
    "--pod-name", default=socket.gethostname, envvar="POD_NAME", help="Name of this operator in the Lease."
)
@click.option(
    "--leader-election/--no-leader-election",
    default=True,
    help="Without election only one operator may run.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    envvar="RRQ_OPERATOR_HTTP",
    help="Serve /livez, /readyz and /metrics there. [env: RRQ_OPERATOR_HTTP]",
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "text"]),
    default="auto",
    envvar="RRQ_LOG_FORMAT",
    help="auto is text on a terminal, else JSON. [env: RRQ_LOG_FORMAT]",
)
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    envvar="RRQ_LOG_LEVEL",
    help="Lowest level that is logged. [env: RRQ_LOG_LEVEL]",
)
def run_command(
    namespace: str | None,
    lease_namespace: str | None,
    lease_name: str,
    pod_name: str,
    leader_election: bool,
    http: str | None,
    log_format: LogFormat,
    log_level: str,
) -> None:
    """Manage the RRQWorkerPools of a cluster until a signal ends it."""
    import uvloop

    # Here, because kopf and the Kubernetes client take a second that `rrq-operator local` need not wait.
    from rrq_operator.cluster.kube import KubeUnavailable
    from rrq_operator.control.process import Options, run_operator

    configure_logging(log_format, log_level.upper(), None)
    options = Options(
        namespace=namespace or None,
        lease_namespace=lease_namespace or _read_namespace(),
        lease_name=lease_name,
        pod_name=pod_name,
        http=http,
        elects=leader_election,
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_operator(options))
    except KubeUnavailable as error:
        raise click.ClickException(str(error)) from error


def _read_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"
