"""Wires a synthetic cluster to the SDK, and powers it off when the process is asked to end."""

import asyncio
from pathlib import Path

from allmende.agent.program import Footing
from allmende.agent.sdk.agent import Agent, Pace
from allmende.agent.sdk.attempts import lost_with_agent
from allmende.agent.sdk.journal import Journal
from allmende.agent.synthetic.backend import SyntheticBackend, TruthFile
from allmende.agent.synthetic.cluster import Cluster, nodes_of
from allmende.agent.synthetic.config import SyntheticSettings
from allmende.agent.synthetic.failures import failures
from allmende.agent.synthetic.truth import Left, left_by, lost
from allmende.chassis.log import get_logger
from allmende.proto.units import Ms

_KILLED = "the synthetic cluster was killed; its jobs died with it"

_log = get_logger(__name__)


async def run(footing: Footing, settings: SyntheticSettings) -> None:
    """Be the cluster until stopped; then everything on it ends, is reported, and the ledger's confirmations are awaited."""
    path, opened_at_ms = Path(settings.truth_file), footing.clock.now_ms()
    left = left_by(path)
    truth, journal = TruthFile(path), Journal(path.with_name(f"{path.name}.ends"))
    _settle(settings.cluster, left, truth, journal, opened_at_ms)
    nodes = nodes_of(settings.gpus, settings.gpus_per_node)
    failing = failures(settings.seed, len(nodes), settings.node_failures_per_day, opened_at_ms)
    cluster = Cluster(settings.cluster, nodes, settings.seed, failing, opened_at_ms, truth.write)
    backend = SyntheticBackend(cluster, footing.clock)
    pace = Pace(tick_ms=settings.tick_s * 1_000, tick_real_ms=settings.min_tick_ms)
    agent = Agent(
        cluster=settings.cluster,
        bus=footing.bus,
        clock=footing.clock,
        ids=footing.ids,
        backend=backend,
        pace=pace,
        journal=journal,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(agent.run())
        await footing.stopped.wait()
        off_at_ms = backend.power_off()
        # Admission grants until it has heard that the nodes are down. Nobody but us can say that such an attempt never started.
        await asyncio.sleep(settings.linger_ms / 1_000)
        confirmed = await agent.settle(settings.close_ms / 1_000)
        cluster.close(off_at_ms, agent.unconfirmed)
        if not confirmed:
            _log.warning("left before the ledger confirmed all", unconfirmed=agent.unconfirmed, spooled=agent.spooled)
        running.cancel()
    truth.close()
    journal.close()


def _settle(cluster: str, left: Left, truth: TruthFile, journal: Journal, now_ms: Ms) -> None:
    """What the last run left open died with its process; and what it did not live to say is kept, to be said.

    Before the new run's first line, and each end in the log before it is in the journal: killed here, the next one does the same.
    """
    died = [lost(started, now_ms) for started in left.running]
    for end in died:
        truth.write(end)
    for end in (*left.ended, *died):
        if not journal.knows(end.attempt):
            journal.keep(lost_with_agent(cluster, end.attempt, end.job, end.at_ms, _KILLED))
