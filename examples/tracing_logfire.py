# Logfire: pip install logfire
import logfire

from rrq.integrations import logfire as rrq_logfire

logfire.configure()
rrq_logfire.enable()
