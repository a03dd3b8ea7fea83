"""The play: what is done to an agent in which order, and what must be heard of it. Each case is a sentence of the contract."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from allmende.agent.conformance import orders
from allmende.agent.conformance.orders import FENCE, Script, Scripts
from allmende.agent.conformance.stage import Failed, Stage
from allmende.chassis.clock import real_seconds
from allmende.proto.agent import AttemptEnded, AttemptStarted, Counter, GpuFreed, NodeReported, Outcome, UsageTick
from allmende.proto.units import SECOND_MS, Ms
from allmende.proto.user import Payload

# Time for a command to say that it does not listen to SIGTERM; nothing announces it.
SETTLE_S = 0.5
SHORT_GRACE_MS: Ms = SECOND_MS
# More than any command needs that leaves when it is told to.
LONG_GRACE_MS: Ms = 60 * SECOND_MS
# An end is said again every 10 s; what has not come until then has been forgotten.
QUIET_S = 1.0


class Result(NamedTuple):
    """One row of the table; `fault` empty: as it should be."""

    sentence: str
    fault: str


class Play:
    """One agent, from its first start to its last end."""

    def __init__(self, stage: Stage, scripts: Scripts, user: str, environment: dict[str, str]) -> None:
        self._stage, self._scripts, self._user, self._environment = stage, scripts, user, environment
        self._grants = 0
        self._node = ""
        self._gpus = 0
        self._unconfirmed: list[str] = []
        self._confirmed: list[str] = []

    def cases(self) -> tuple[tuple[str, Callable[[], Awaitable[None]]], ...]:
        """Sentence and act, in their order."""
        return (
            ("it reports its nodes and their GPUs", self._reports),
            ("every node says that it lives", self._lives),
            ("a job that ends by itself has started, finished with 0, and freed its GPUs", self._finishes),
            ("a job that fails says its exit code", self._fails),
            ("a grant on a node that it has not is answered with never_started", self._no_node),
            ("a grant of more GPUs than there are is answered with never_started", self._no_gpus),
            ("a grant of an earlier term of admission is answered with never_started", self._old_term),
            ("a job whose payload admission refuses is answered with never_started", self._no_payload),
            ("an evicted job leaves within its grace, and its end names the plan", self._evicted),
            ("a job that ignores SIGTERM is killed after the grace, not before", self._stubborn),
            ("a stopped job ends as stopped", self._stopped),
            ("an order for an attempt that it does not know is answered, and the late grant starts nothing", self._unknown),
            ("what ends while the bus is away is said when it is back", self._outage),
            ("an end that the ledger does not confirm is said again: the message may be lost", self._repeats),
            ("killed: ends that the ledger has not confirmed are said again, the same as before", self._ends_survive),
            ("killed: confirmed ends are not said again", self._confirmed_rest),
            ("killed: a running job goes on or is said to have ended", self._running_survives),
            ("killed: a grant that was not answered is answered", self._grant_survives),
            ("all GPUs can be granted again", self._all_free),
            ("each attempt starts once and ends once, whatever is said twice", self._once),
            ("counters never fall, and charge exactly the GPUs that were held", self._counters),
            ("asked to end, it ends with exit code 0", self._leaves),
        )

    # ------------------------------------------------------------------------------------------------------------------- means

    async def _grant(
        self, script: Script, gpus: int = 1, node: str = "", fence: int = FENCE, attempt: str = "", *, known: bool = True
    ) -> str:
        if not self._node:
            raise Failed("no node of it is known to grant anything on")
        self._grants += 1
        now_ms = self._stage.now_ms()
        attempt = attempt or self._stage.ids.new(now_ms)
        command = getattr(self._scripts, script)
        if known:
            self._stage.payloads.setdefault(attempt, Payload(command=command, environment=self._environment, directory="/"))
        body = orders.grant(attempt, self._user, node or self._node, gpus, self._grants, now_ms, fence)
        await self._stage.say("admission", body)
        return attempt

    async def _started(self, script: Script, gpus: int = 1) -> str:
        attempt = await self._grant(script, gpus)
        await self._stage.until(lambda: self._stage.all(AttemptStarted, attempt) or self._ends(attempt), "it is answered")
        if not self._stage.all(AttemptStarted, attempt):
            raise Failed(f"it did not start: {self._ends(attempt)[0].detail}")
        return attempt

    def _ends(self, attempt: str) -> list[AttemptEnded]:
        return self._stage.all(AttemptEnded, attempt)

    async def _end(self, attempt: str, outcome: Outcome, *, confirm: bool = True) -> AttemptEnded:
        await self._stage.until(lambda: self._ends(attempt), "its end is said")
        end = self._ends(attempt)[0]
        if end.outcome != outcome:
            raise Failed(f"it ended as {end.outcome}, exit code {end.exit_code}, not as {outcome}: {end.detail}")
        if confirm:
            await self._stage.say("ledger", orders.confirmed(attempt))
            self._confirmed.append(attempt)
        else:
            self._unconfirmed.append(attempt)
        return end

    async def _freed(self, attempt: str, gpus: int) -> None:
        await self._stage.until(lambda: self._stage.all(GpuFreed, attempt), "its GPUs are said to be free")
        freed = sum(node.gpus for node in self._stage.all(GpuFreed, attempt)[0].nodes)
        if freed != gpus:
            raise Failed(f"{freed} GPUs are said to be free, {gpus} were granted")

    def _counted(self, attempt: str | None = None) -> list[Counter]:
        found = []
        for body in self._stage.heard:
            if isinstance(body, UsageTick | AttemptEnded):
                found += [counter for counter in body.counters if attempt in (None, counter.attempt)]
        return found

    # ------------------------------------------------------------------------------------------------------------------- cases

    async def _reports(self) -> None:
        await self._stage.until(lambda: self._stage.all(NodeReported), "a node is reported")
        first = max(self._stage.all(NodeReported), key=lambda node: node.healthy_gpus)
        self._node, self._gpus = first.node, first.healthy_gpus
        if self._gpus < 1:
            raise Failed("no node has a healthy GPU")

    async def _lives(self) -> None:
        await self._stage.until(lambda: self._node in {tick.node for tick in self._stage.all(UsageTick)}, "a tick of its node")

    async def _finishes(self) -> None:
        attempt = await self._started("quick")
        end = await self._end(attempt, "finished")
        if end.exit_code not in (0, None):
            raise Failed(f"it finished with exit code {end.exit_code}")
        await self._freed(attempt, 1)
        # Said again under another id, as after a restart of admission: it has ended.
        await self._grant("quick", attempt=attempt)

    async def _fails(self) -> None:
        end = await self._end(await self._started("failing"), "failed")
        if not end.exit_code:
            raise Failed(f"its exit code is {end.exit_code}")

    async def _no_node(self) -> None:
        await self._end(await self._grant("quick", node="no-such-node"), "never_started")

    async def _no_gpus(self) -> None:
        await self._end(await self._grant("quick", self._gpus + 1), "never_started")

    async def _old_term(self) -> None:
        await self._end(await self._grant("quick", fence=FENCE - 1), "never_started")

    async def _no_payload(self) -> None:
        await self._end(await self._grant("quick", known=False), "never_started")

    async def _evict(self, attempt: str, grace_ms: Ms) -> str:
        plan, claim = (self._stage.ids.new(self._stage.now_ms()) for _ in range(2))
        await self._stage.say("preemptor", orders.eviction(attempt, plan, claim, grace_ms, self._stage.now_ms()))
        return plan

    async def _evicted(self) -> None:
        attempt = await self._started("long")
        # The grant once more while it runs.
        await self._grant("long", attempt=attempt)
        plan = await self._evict(attempt, LONG_GRACE_MS)
        end = await self._end(attempt, "evicted")
        if end.plan != plan:
            raise Failed(f"its end names the plan {end.plan}, not {plan}")
        await self._freed(attempt, 1)

    async def _stubborn(self) -> None:
        attempt = await self._started("stubborn")
        await asyncio.sleep(SETTLE_S)
        ordered_s = real_seconds()
        await self._evict(attempt, SHORT_GRACE_MS)
        await self._end(attempt, "evicted", confirm=False)
        waited_ms = (real_seconds() - ordered_s) * 1_000 * self._stage.clock.rate
        if waited_ms < SHORT_GRACE_MS:
            raise Failed(f"it was gone after {waited_ms:.0f} of {SHORT_GRACE_MS} ms of grace")

    async def _stopped(self) -> None:
        attempt = await self._started("long")
        await self._stage.say("admission", orders.stop(attempt, LONG_GRACE_MS))
        await self._end(attempt, "stopped", confirm=False)

    async def _unknown(self) -> None:
        attempt = self._stage.ids.new(self._stage.now_ms())
        await self._stage.say("admission", orders.stop(attempt, SHORT_GRACE_MS))
        await self._end(attempt, "never_started")
        await self._grant("quick", attempt=attempt)

    async def _outage(self) -> None:
        attempt = await self._started("quick")
        await self._stage.kill_bus()
        await asyncio.sleep(QUIET_S)
        await self._stage.restart_bus()
        await self._end(attempt, "finished", confirm=False)

    async def _repeats(self) -> None:
        if not self._unconfirmed:
            raise Failed("nothing has ended before")
        first = self._unconfirmed[0]
        await self._stage.until(lambda: len(self._ends(first)) > 1, "the end is said again")

    async def _ends_survive(self) -> None:
        before = {attempt: self._ends(attempt)[-1] for attempt in self._unconfirmed}
        if not before:
            raise Failed("nothing has ended before")
        await self._stage.kill_agent()
        heard = len(self._stage.heard)
        await self._stage.start_agent()

        def again() -> dict[str, AttemptEnded]:
            return {body.attempt: body for body in self._stage.heard[heard:] if isinstance(body, AttemptEnded)}

        await self._stage.until(lambda: before.keys() <= again().keys(), "all ends are said again")
        changed = [attempt for attempt, end in before.items() if again()[attempt] != end]
        if changed:
            raise Failed(f"the end of {changed[0]} is another one")
        await self._stage.say("ledger", orders.confirmed(*before))

    async def _confirmed_rest(self) -> None:
        await self._stage.until(lambda: self._node in {tick.node for tick in self._stage.all(UsageTick)}, "it ticks")
        counts = {attempt: len(self._ends(attempt)) for attempt in self._confirmed}
        await asyncio.sleep(QUIET_S)
        said = [attempt for attempt, count in counts.items() if len(self._ends(attempt)) != count]
        if said:
            raise Failed(f"the end of {said[0]} is said again")

    async def _running_survives(self) -> None:
        attempt = await self._started("long")
        await self._stage.until(lambda: self._counted(attempt), "it is counted")
        await self._stage.kill_agent()
        counted = len(self._counted(attempt))
        await self._stage.start_agent()
        await self._stage.until(lambda: self._ends(attempt) or len(self._counted(attempt)) > counted, "something is said of it")
        if self._ends(attempt):
            await self._end(attempt, "node_lost")
        else:
            await self._stage.say("admission", orders.stop(attempt, LONG_GRACE_MS))
            await self._end(attempt, "stopped")

    async def _grant_survives(self) -> None:
        attempt = self._stage.ids.new(self._stage.now_ms())
        self._stage.payloads[attempt] = None
        await self._grant("quick", attempt=attempt)
        await self._stage.until(lambda: attempt in self._stage.fetched, "its payload is asked for")
        await self._stage.kill_agent()
        del self._stage.payloads[attempt]
        self._stage.payloads[attempt] = Payload(command=self._scripts.quick, environment=self._environment, directory="/")
        await self._stage.start_agent()
        await self._end(attempt, "finished")

    async def _all_free(self) -> None:
        attempt = await self._started("quick", self._gpus)
        await self._end(attempt, "finished")
        await self._freed(attempt, self._gpus)

    async def _once(self) -> None:
        starts, ends = defaultdict(set), defaultdict(set)
        for start in self._stage.all(AttemptStarted):
            starts[start.attempt].add(start.started_at_ms)
        for end in self._stage.all(AttemptEnded):
            ends[end.attempt].add((end.outcome, end.ended_at_ms))
        for what, found in (("starts", starts), ("ends", ends)):
            if twice := [attempt for attempt, facts in found.items() if len(facts) > 1]:
                raise Failed(f"{twice[0]} {what} more than once")

    async def _counters(self) -> None:
        latest: dict[tuple[str, int, int], Counter] = {}
        for counter in self._counted():
            key = (counter.attempt, counter.replica, counter.epoch)
            before = latest.get(key)
            if before and counter.seq > before.seq and counter.used_gpu_ms < before.used_gpu_ms:
                raise Failed(f"{counter.attempt}: {before.used_gpu_ms} GPU-ms at {before.seq}, {counter.used_gpu_ms} later")
            if before and counter.since_ms != before.since_ms:
                raise Failed(f"{counter.attempt}: one epoch has two beginnings")
            if counter.held_ms and counter.used_gpu_ms % counter.held_ms:
                raise Failed(
                    f"{counter.attempt}: {counter.used_gpu_ms} GPU-ms are no whole number of GPUs for {counter.held_ms} ms"
                )
            if before is None or counter.seq > before.seq:
                latest[key] = counter

    async def _leaves(self) -> None:
        code = await self._stage.end_agent()
        if code:
            raise Failed(f"its exit code is {code}")


async def perform(play: Play) -> list[Result]:
    """Play every case; those after a failed one as well, as far as the agent lives."""
    results = []
    for sentence, act in play.cases():
        try:
            await act()
        except Failed as failed:
            results.append(Result(sentence, str(failed)))
        else:
            results.append(Result(sentence, ""))
    return results
