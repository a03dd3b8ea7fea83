"""Wires a synthetic cluster to the SDK, and powers it off when the process is asked to end."""

import asyncio
from pathlib import Path

from allmende.agent.program import Footing
from allmende.agent.sdk.agent import Agent, Pace
from allmende.agent.synthetic.backend import SyntheticBackend, TruthFile
from allmende.agent.synthetic.cluster import Cluster, nodes_of
from allmende.agent.synthetic.config import SyntheticSettings
from allmende.agent.synthetic.failures import failures
from allmende.agent.synthetic.truth import lost, still_running
from allmende.chassis.log import get_logger

_log = get_logger(__name__)


async def run(footing: Footing, settings: SyntheticSettings) -> None:
    """Be the cluster until stopped; then everything on it ends, is reported, and the ledger's confirmations are awaited."""
    # What the log of an earlier run leaves open died with that run's process.
    running_then = still_running(Path(settings.truth_file))
    truth = TruthFile(Path(settings.truth_file))
    nodes = nodes_of(settings.gpus, settings.gpus_per_node)
    opened_at_ms = footing.clock.now_ms()
    failing = failures(settings.seed, len(nodes), settings.node_failures_per_day, opened_at_ms)
    cluster = Cluster(settings.cluster, nodes, settings.seed, failing, opened_at_ms, truth.write)
    backend = SyntheticBackend(cluster, footing.clock)
    pace = Pace(tick_ms=settings.tick_s * 1_000, tick_real_ms=settings.min_tick_ms)
    agent = Agent(cluster=settings.cluster, bus=footing.bus, clock=footing.clock, ids=footing.ids, backend=backend, pace=pace)
    for started in running_then:
        truth.write(lost(started, opened_at_ms))
        agent.lost(started.attempt, started.job, "the synthetic cluster was killed; its jobs died with it")
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
