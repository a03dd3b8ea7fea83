"""Wires the preemptor: one worker, one handler. Decides nothing."""

from allmende.chassis.boot import Chassis
from allmende.chassis.worker import Worker
from allmende.preemptor.config import Settings
from allmende.preemptor.handlers import Preemptor
from allmende.preemptor.store import Store
from allmende.proto.streams import consumers_of
from allmende.proto.subjects import Role

SERVICE: Role = "preemptor"


async def run(chassis: Chassis, settings: Settings) -> None:
    """Work until cancelled."""
    handle = Preemptor(
        clock=chassis.clock,
        ids=chassis.ids,
        health=chassis.health,
        rows=lambda tx: Store(tx.connection),
        policy=settings.policy,
        silent_after_ms=settings.silent_after_ms,
    )
    worker = Worker(
        service=SERVICE,
        bus=chassis.bus,
        db=chassis.db,
        clock=chassis.clock,
        ids=chassis.ids,
        health=chassis.health,
        handle=handle,
        consumers=consumers_of(SERVICE),
    )
    await worker.run()
