"""Wires the preemptor: one worker with its handler, and what operators ask. Decides nothing."""

from allmende.chassis.boot import Chassis
from allmende.chassis.rpc import endpoint
from allmende.chassis.worker import Worker
from allmende.preemptor.config import Settings
from allmende.preemptor.handlers.batch import Preemptor
from allmende.preemptor.handlers.drains import Drains, Operators
from allmende.preemptor.store import Store
from allmende.proto import subjects
from allmende.proto.streams import consumers_of
from allmende.proto.subjects import Role

SERVICE: Role = "preemptor"
VERSION = "0.1.0"


async def run(chassis: Chassis, settings: Settings) -> None:
    """Work until cancelled."""
    policy = settings.policy(chassis.clock.rate)
    drains = Drains(chassis.ids, policy)
    handle = Preemptor(
        clock=chassis.clock,
        ids=chassis.ids,
        health=chassis.health,
        rows=lambda tx: Store(tx.connection),
        policy=policy,
        silent_after_ms=settings.silent_after_ms,
        drains=drains,
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
    operators = Operators(drains, chassis.db, worker, chassis.clock, Store)
    endpoints = [
        endpoint(subjects.CORDON, operators.cordon),
        endpoint(subjects.UNCORDON, operators.uncordon),
        endpoint(subjects.DRAINS, operators.drains),
    ]
    async with chassis.answering(SERVICE, VERSION, endpoints):
        await worker.run()
