"""Fragmentation: how much of the free room is usable by jobs that want whole nodes. Means over the samples in the span."""

from allmende.simulator.figures.model import Fragmentation
from allmende.simulator.figures.quotients import quotient
from allmende.simulator.figures.span import Span
from allmende.simulator.model import History


def fragmentation(history: History, span: Span) -> Fragmentation:
    """`broken_share` is over the sums, so hours with much free room weigh more than those with hardly any."""
    rooms = [room for room in history.rooms if span.has(room.at_ms)]
    samples, free = len(rooms), sum(room.free for room in rooms)
    whole = sum(room.free_on_empty_nodes for room in rooms)
    return Fragmentation(
        samples=samples,
        free_gpus_mean=quotient(free, samples),
        free_on_empty_nodes_mean=quotient(whole, samples),
        broken_share=quotient(free - whole, free),
        waiting_jobs_mean=quotient(sum(room.waiting_jobs for room in rooms), samples),
        waiting_gpus_mean=quotient(sum(room.waiting_gpus for room in rooms), samples),
        waiting_gpus_max=max((room.waiting_gpus for room in rooms), default=None),
    )
