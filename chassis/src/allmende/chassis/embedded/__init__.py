"""Servers on this machine for a laptop, a test or the demo: found on PATH or in the `embedded` extra, on free ports, guarded.

They end when we end, however we end, and keep their data in a folder from which they start again, also after a kill. Never for a
deployment: one NATS server, one PostgreSQL, no TLS, no backup.
"""

from allmende.chassis.embedded.nats_server import NatsServer, find_nats_server, start_nats
from allmende.chassis.embedded.postgres import PostgresServer, start_postgres

__all__ = ["NatsServer", "PostgresServer", "find_nats_server", "start_nats", "start_postgres"]
