"""The machine as a backend of the SDK: starts keepers, hands orders to them, and notices their ends.

Never signals a process itself, but for what a killed keeper left behind.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from allmende.agent.process import records
from allmende.agent.process.accounts import Account, account_for
from allmende.agent.process.cgroups import Cgroups
from allmende.agent.process.held import Held, cgroup_name, replicas_of, saved_at_ns
from allmende.agent.process.machine import boot_id, boot_ms, find_account, own_account
from allmende.agent.process.nvml import Nvml
from allmende.agent.process.records import Record
from allmende.agent.process.replica import Replica, Spec
from allmende.agent.process.surroundings import NOTICE, WARNING, environment_of, notice_of
from allmende.agent.process.sweep import sweep
from allmende.agent.sdk.backend import CannotStart, Cause, Launch, NodeState, Notices, ReplicaPlace, Running, Vitals
from allmende.agent.sdk.warnings import text_of, warning_due
from allmende.chassis.clock import real_seconds
from allmende.chassis.ports import Clock
from allmende.proto.units import Ms

# Two small files a replica: a thousand of them cost a few milliseconds.
LOOK_S = 0.05
# NVML's own sample periods are between a sixth of a second and a second.
SAMPLE_S = 1.0


class ProcessBackend:
    """See `sdk.backend.Backend`. Exact: the end of a job is its keeper's reading of the clock, whenever it is noticed."""

    def __init__(self, folder: Path, node: NodeState, clock: Clock, cgroups: Cgroups | None, nvml: Nvml | None) -> None:
        self._folder, self._node, self._clock = folder, node, clock
        self._cgroups, self._nvml = cgroups, nvml
        self._own, self._boot = own_account(), boot_id()
        self._held: dict[str, Held] = {}
        self._notices: Notices | None = None
        self._stir = asyncio.Event()
        self._goes = False
        self._starting = 0

    # ------------------------------------------------------------------------------------------------------ an earlier agent's

    async def left_behind(self) -> tuple[list[Running], list[Record]]:
        """What an earlier agent of this folder left: what runs or has ended since, and what died when the machine was started anew.

        Before `run`, once. What was only being started is ended: its grant comes again.
        """
        running, died = [], []
        for folder in sorted((self._folder / "attempts").iterdir()):
            record = records.read(folder)
            if record is not None and record.started_at_ms is not None and record.boot != self._boot:
                died.append(record)
            elif record is None or record.started_at_ms is None or record.boot != self._boot:
                await self._abandon(folder, folder.name, len(record.devices) if record else 0)
            else:
                held = self._held[record.attempt] = Held(folder, record, self._cgroups)
                held_ms = held.held_boot_ms(boot_ms()) * self._clock.rate
                running.append(Running(record.launch(self._node.node), record.started_at_ms, held_ms, record.cause))
        return running, died

    def forget(self, attempt: str) -> None:
        """The end of an attempt is kept elsewhere already."""
        self._held.pop(attempt, None)
        shutil.rmtree(self._folder / "attempts" / attempt, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------------------ the protocol

    async def run(self, notices: Notices) -> None:
        """Notice ends, notices that are due, and how busy the GPUs are."""
        self._notices = notices
        sampled_s = real_seconds()
        while True:
            self._look()
            if not self._held:
                self._stir.clear()
                await self._stir.wait()
                sampled_s = real_seconds()
            if (passed_s := real_seconds() - sampled_s) >= SAMPLE_S:
                self._sample(round(passed_s * 1_000))
                sampled_s += passed_s
            await asyncio.sleep(LOOK_S)

    async def nodes(self) -> Sequence[NodeState]:
        """This machine."""
        return (self._node,)

    async def start(self, launch: Launch) -> Ms:
        """Start a keeper for every replica."""
        if self._goes:
            raise CannotStart("this machine leaves the cluster")
        account = account_for(launch.user, self._own, find_account)
        if isinstance(account, str):
            raise CannotStart(account)
        folder = self._folder / "attempts" / launch.attempt
        folder.mkdir(mode=0o711)
        checkpoint = self._checkpoint_of(launch.job)
        self._make_place(checkpoint.parent, account)
        record = self._record(launch, saved_at_ns(checkpoint))
        records.write(folder, record)
        (self._folder / "logs" / launch.job).mkdir(mode=0o711, exist_ok=True)
        replicas = replicas_of(folder, len(launch.places))
        specs = [self._spec(launch, place, account, folder) for place in launch.places]
        self._starting += 1
        try:
            came = await asyncio.gather(*(replica.start(spec) for replica, spec in zip(replicas, specs, strict=True)))
        finally:
            self._starting -= 1
        if not all(came):
            await self._abandon(folder, launch.attempt, len(replicas))
            raise CannotStart("a keeper did not come up; the machine has no room for more processes, or the disk is full")
        held = Held(folder, record, self._cgroups)
        started_at_ms = self._clock.now_ms()
        held.keep(msgspec.structs.replace(record, started_at_ms=started_at_ms, started_boot_ms=boot_ms()))
        self._held[launch.attempt] = held
        self._stir.set()
        return started_at_ms

    async def terminate(self, attempt: str, cause: Cause) -> None:
        """SIGTERM, and the cause kept for the next agent first."""
        if (held := self._held.get(attempt)) is not None:
            held.keep(msgspec.structs.replace(held.record, cause=cause))
            self._give_notice(held, f"{cause.kind}: SIGTERM was sent")
            held.tell(b"T")

    async def kill(self, attempt: str, cause: Cause) -> None:
        """SIGKILL."""
        if (held := self._held.get(attempt)) is not None:
            held.tell(b"K")

    async def observe(self, at_ms: Ms) -> Mapping[str, Vitals]:
        """What runs, after all ends that are there have been noticed."""
        self._look()
        now_boot_ms = boot_ms()
        found = {}
        for attempt, held in self._held.items():
            held_ms = held.held_boot_ms(now_boot_ms) * self._clock.rate
            found[attempt] = Vitals(self._saved_at_ms(held, at_ms), held.record.busy_gpu_ms, held_ms)
            if held.record.busy_gpu_ms is not None:
                held.keep(held.record)
        return found

    async def end_all(self, grace_s: float) -> None:
        """The machine leaves the cluster: end everything, politely at first. Returns when nothing runs any more."""
        self._goes = True
        until_s = real_seconds() + grace_s
        told: set[str] = set()
        # What was being started when the order came is ended once it has.
        while self._held or self._starting:
            for attempt, held in self._held.items():
                if real_seconds() > until_s:
                    held.tell(b"K")
                elif attempt not in told:
                    told.add(attempt)
                    held.tell(b"T")
            await asyncio.sleep(LOOK_S)

    # ------------------------------------------------------------------------------------------------------------------ looking

    def _look(self) -> None:
        assert self._notices is not None, "the SDK runs the backend before it asks anything of it"
        now_boot_ms = boot_ms()
        for attempt, held in list(self._held.items()):
            if held.look():
                left = held.exit(self._clock.rate, self._saved_at_ms(held, self._clock.now_ms()), node_goes=self._goes)
                # In the journal when this returns; killed before, the next agent reads it out of the folder.
                self._notices.exited(left)
                self.forget(attempt)
                if left.how == "finished":
                    self._clear_place(held.record.job)
                continue
            slice_ms, held_ms = held.record.slice_ms, held.held_boot_ms(now_boot_ms) * self._clock.rate
            self._warn(held, slice_ms, held_ms)
            if slice_ms and held_ms >= slice_ms - held.record.notice_before_ms:
                self._give_notice(held, f"slice: it ends {slice_ms} ms after the start")

    def _warn(self, held: Held, protected_ms: Ms, held_ms: Ms) -> None:
        warned = warning_due(protected_ms, held_ms)
        if warned is None or warned.warning_ms == held.warned_ms:
            return
        held.warned_ms = warned.warning_ms
        file, part, text = held.folder / WARNING, held.folder / f"{WARNING}.part", text_of(warned)
        # An earlier agent may have said it: to a job that watches the file's time a second one would be a new warning.
        if file.exists() and file.read_bytes() == text:
            return
        part.write_bytes(text)
        part.chmod(0o644)
        part.replace(file)

    def _give_notice(self, held: Held, words: str) -> None:
        notice = held.folder / NOTICE
        if notice.exists():
            return
        notice.write_text(f"{words}\n")
        notice.chmod(0o644)
        if held.record.notice_order:
            held.tell(held.record.notice_order.encode())

    def _sample(self, passed_ms: Ms) -> None:
        if self._nvml is None:
            return
        for held in self._held.values():
            percents = [self._nvml.busy_percent(device) for devices in held.record.devices for device in devices]
            known = [percent for percent in percents if percent is not None]
            if len(known) == len(percents):
                # Of one replica: the replicas of a gang are alike.
                busy_ms = sum(known) * passed_ms * self._clock.rate // (100 * len(held.replicas))
                held.record = msgspec.structs.replace(held.record, busy_gpu_ms=(held.record.busy_gpu_ms or 0) + busy_ms)

    def _saved_at_ms(self, held: Held, now_ms: Ms) -> Ms | None:
        """When the job saved in this attempt. The file's time is the wall clock's, which may have been set meanwhile."""
        saved_ns = saved_at_ns(self._checkpoint_of(held.record.job))
        started_at_ms = held.record.started_at_ms
        if saved_ns is None or saved_ns == held.record.checkpoint_ns or started_at_ms is None:
            return None
        saved_at_ms = saved_ns // 1_000_000 if self._clock.rate == 1 else now_ms
        return min(max(saved_at_ms, started_at_ms), max(now_ms, started_at_ms))

    # ------------------------------------------------------------------------------------------------------------------- starting

    def _record(self, launch: Launch, checkpoint_ns: int | None) -> Record:
        notice = notice_of(launch.payload.environment, launch.slice_ms)
        return Record(
            attempt=launch.attempt,
            job=launch.job,
            user=launch.user,
            budget=launch.budget,
            devices=tuple(place.devices for place in launch.places),
            gpus_per_replica=launch.gpus_per_replica,
            slice_ms=launch.slice_ms,
            epoch=launch.epoch,
            boot=self._boot,
            began_boot_ms=boot_ms(),
            notice_before_ms=notice.before_ms,
            notice_order=notice.order.decode(),
            checkpoint_ns=checkpoint_ns,
        )

    def _spec(self, launch: Launch, place: ReplicaPlace, account: Account, folder: Path) -> Spec:
        cgroup = self._cgroups.make(cgroup_name(launch.attempt, place.replica)) if self._cgroups else None
        other = account.uid != self._own.uid
        return Spec(
            command=launch.payload.command,
            environment=environment_of(launch, place, account, self._checkpoint_of(launch.job), folder),
            directory=launch.payload.directory or account.home,
            log=str(self._folder / "logs" / launch.job / f"{launch.attempt}.{place.replica}.log"),
            account={"uid": account.uid, "gid": account.gid, "groups": account.groups} if other else None,
            cgroup=str(cgroup) if cgroup else None,
            cgroup_mount=str(self._cgroups.mount) if self._cgroups else None,
        )

    def _checkpoint_of(self, job: str) -> Path:
        return self._folder / "jobs" / job / "checkpoint"

    def _make_place(self, folder: Path, account: Account) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        if account.uid != self._own.uid:
            os.chown(folder, account.uid, account.gid)

    def _clear_place(self, job: str) -> None:
        """A job that has finished resumes nothing. What else it wrote there is its own and stays."""
        checkpoint = self._checkpoint_of(job)
        checkpoint.unlink(missing_ok=True)
        try:
            checkpoint.parent.rmdir()
        except OSError:
            return

    async def _abandon(self, folder: Path, attempt: str, replicas: int) -> None:
        """End whatever of an attempt was started, and forget it."""
        held = [Replica(folder / str(number)) for number in range(replicas)]
        while True:
            for number, replica in enumerate(held):
                replica.tell(b"K")
                if self._cgroups and not replica.lives:
                    self._cgroups.end(cgroup_name(attempt, number))
            if not any(replica.lives for replica in held) and not sweep(attempt):
                break
            await asyncio.sleep(LOOK_S)
        self.forget(attempt)
