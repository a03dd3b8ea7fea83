"""Submits what a source wants, hears what ends, and keeps the log. The source decides; this only carries."""

import asyncio
from pathlib import Path

from allmende.agent.program import Footing
from allmende.agent.sdk.publisher import Publisher
from allmende.agent.workload import log as entries
from allmende.agent.workload.config import WorkloadSettings
from allmende.agent.workload.lab import Lab
from allmende.agent.workload.loop import Loop
from allmende.agent.workload.openloop import Replay, Source
from allmende.agent.workload.tracefile import lab_and_jobs, parse_instant
from allmende.chassis import rpc
from allmende.chassis.clock import real_seconds
from allmende.chassis.errors import Transient
from allmende.chassis.log import get_logger
from allmende.proto.admission import JobEnded, JobRefused, JobsPage, JobsQuery
from allmende.proto.envelope import Refusal, decode
from allmende.proto.subjects import BY_MESSAGE, JOBS

# An end is answered within this; shorter would only make more, smaller batches.
LOOK_EVERY_S = 0.05
# A job that was submitted this lately may not be in admission's list yet.
GRACE_S = 10.0
PAGE = 100

_log = get_logger(__name__)


async def run(footing: Footing, settings: WorkloadSettings) -> None:
    """Be the people of the lab until stopped."""
    source, lab = _source(footing, settings)
    driver = Driver(footing, settings, source, lab)
    await driver.run()


def _source(footing: Footing, settings: WorkloadSettings) -> tuple[Source, Lab]:
    now_ms = footing.clock.now_ms()
    lab, jobs = lab_and_jobs(settings.seed, settings.trace)
    if settings.trace is None:
        return Loop(lab, settings.gpus, settings.seed, now_ms), lab
    from_ms = parse_instant(settings.trace_from)
    return Replay(lab, jobs, settings.gpus, settings.seed, from_ms, now_ms), lab


class Driver:
    """One workload over one bus."""

    def __init__(self, footing: Footing, settings: WorkloadSettings, source: Source, lab: Lab) -> None:
        self._footing, self._settings, self._source, self._lab = footing, settings, source, lab
        self._publisher = Publisher(bus=footing.bus, clock=footing.clock, ids=footing.ids)
        self._file = Path(settings.log_file).open("ab", buffering=0)  # noqa: SIM115 open for the life of the process
        self._submitted_s: dict[str, float] = {}

    async def run(self) -> None:
        """Submit and listen until stopped; what was submitted is flushed."""
        teams = tuple(entries.TeamShare(budget=team.budget, effective_share_ppm=team.effective_ppm) for team in self._lab.teams)
        now_ms = self._footing.clock.now_ms()
        self._write(entries.Began(at_ms=now_ms, seed=self._settings.seed, gpus=self._settings.gpus, teams=teams))
        stops = [await self._footing.bus.watch(BY_MESSAGE[kind].pattern, self._hear) for kind in (JobEnded, JobRefused)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in (self._publisher.run(), self._submit(), self._reconcile())]
            await self._footing.stopped.wait()
            tasks[1].cancel()
            if not await self._publisher.flush(wait_s=3.0):
                _log.warning("the bus did not take all submissions", left=self._publisher.spooled)
            for task in tasks:
                task.cancel()
        for stop in stops:
            await stop()
        self._file.close()

    async def _submit(self) -> None:
        while True:
            now_ms = self._footing.clock.now_ms()
            for request in self._source.wanted(now_ms):
                body = request.body
                self._submitted_s[body.job] = real_seconds()
                self._write(
                    entries.Submitted(
                        at_ms=now_ms,
                        job=body.job,
                        user=body.user,
                        team=request.team,
                        budget=body.budget,
                        gpus=request.gpus,
                        slice_ms=body.slice_ms,
                        debug=request.debug,
                    )
                )
                self._publisher.say(body, now_ms)
            await asyncio.sleep(LOOK_EVERY_S)

    def _hear(self, subject: str, data: bytes) -> None:
        try:
            envelope = decode(data)
        except Refusal as refusal:
            _log.error("a message cannot be read", subject=subject, why=str(refusal))
            return
        body = envelope.body
        if isinstance(body, JobEnded):
            self._ended(body.job, body.ended_at_ms, body.outcome, body.first_started_at_ms)
        elif isinstance(body, JobRefused):
            _log.warning("a job was refused", job=body.job, user=body.user, code=body.problem.code, why=body.problem.sentence)
            self._ended(body.job, envelope.occurred_at_ms, "refused", None)

    def _ended(self, job: str, at_ms: int, outcome: str, first_started_at_ms: int | None) -> None:
        if self._source.ended(job):
            self._submitted_s.pop(job, None)
            self._write(entries.Ended(at_ms=at_ms, job=job, outcome=outcome, first_started_at_ms=first_started_at_ms))

    async def _reconcile(self) -> None:
        """What is live only may be missed: admission's list of jobs is asked now and then which of ours are really open."""
        while True:
            await asyncio.sleep(self._settings.check_s)
            before_s = real_seconds() - GRACE_S
            suspects = {job for job in self._source.open if self._submitted_s.get(job, 0.0) < before_s}
            try:
                listed = await self._listed()
            except (Transient, Refusal) as error:
                _log.info("admission does not list its jobs now", why=str(error))
                continue
            for job in sorted(suspects - listed):
                self._ended(job, self._footing.clock.now_ms(), "unheard", None)

    async def _listed(self) -> set[str]:
        found: set[str] = set()
        query = JobsQuery(states=("queued", "starting", "running", "ending"), limit=PAGE)
        while True:
            page: JobsPage = await rpc.ask(self._footing.bus, JOBS, self._settings.caller, query)
            found.update(each.job for each in page.jobs)
            if page.next_before is None:
                return found
            query = JobsQuery(states=query.states, limit=PAGE, before=page.next_before)

    def _write(self, entry: entries.AnyEntry) -> None:
        self._file.write(entries.to_line(entry))
