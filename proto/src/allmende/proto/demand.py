"""What a job asks for, as every word of admission about it carries it whole: what the last word says is all that there is to know.

Never what the job runs.
"""

from typing import Annotated

from msgspec import Meta, Struct

from allmende.proto.ids import Name
from allmende.proto.units import GpuCount, Instant, Span
from allmende.proto.user import MAX_REPLICAS


class Asked(Struct, frozen=True, kw_only=True):
    """A job's demand: `replicas` x `gpus_per_replica` GPUs from `submitted_at_ms` until its end, running or waiting (contract §10).

    `budget` None: unallocated from the start. `clusters` empty: any. An admission of before this field says no `asked`.
    """

    budget: Name | None
    submitted_at_ms: Instant
    clusters: Annotated[tuple[Name, ...], Meta(max_length=64)]
    replicas: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)]
    gpus_per_replica: GpuCount
    gpu_model: Name | None
    slice_ms: Span
