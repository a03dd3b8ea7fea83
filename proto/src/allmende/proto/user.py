"""What people say: jobs they want to run. Strict: a misspelt field is refused, not ignored, because its default could cost days."""

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from allmende.proto.ids import Id, Name
from allmende.proto.message import Message
from allmende.proto.units import HOUR_MS, Span

Kind = Literal["batch", "session"]
Argument = Annotated[str, Meta(max_length=8_192)]

MAX_REPLICAS = 4_096
MAX_GPUS_PER_REPLICA = 1_024
MAX_ARRAY = 10_000
# §1 of the contract: the cluster's cap on a slice is 8 h unless it says otherwise.
DEFAULT_SLICE_CAP_MS = 8 * HOUR_MS


MAX_VARIABLES = 1_000
# What the agent finds in the environment of an array's job besides.
ARRAY_VARIABLES = ("ALLMENDE_ARRAY_JOB", "ALLMENDE_ARRAY_INDEX", "ALLMENDE_ARRAY_SIZE")


class Payload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job runs. Only the agent that holds a grant for the job may read it."""

    command: Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=1_000)]
    environment: Annotated[dict[str, Argument], Meta(max_length=MAX_VARIABLES)] = {}
    directory: Argument | None = None


class InArray(Struct, frozen=True, kw_only=True):
    """A job's place in its array. `first` is the id of the job that was submitted; those of the others follow it."""

    first: Id
    index: Annotated[int, Meta(ge=0, lt=MAX_ARRAY)]
    size: Annotated[int, Meta(ge=1, le=MAX_ARRAY)]


class JobSubmitted(Message, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person asks for GPUs. `budget` unset means: run unallocated. `clusters` empty means: any."""

    TYPE: ClassVar[str] = "job.submitted"

    user: Name
    job: Id
    name: Annotated[str, Meta(max_length=200)] = ""
    budget: Name | None = None
    clusters: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    replicas: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = 1
    gpus_per_replica: Annotated[int, Meta(ge=1, le=MAX_GPUS_PER_REPLICA)] = 1
    gpu_model: Name | None = None
    slice_ms: Span
    stated_runtime_ms: Span | None = None
    """What the submitter expects; only for warnings and estimates."""
    max_runtime_ms: Span | None = None
    """The job is stopped after this much time in one attempt. Unset is unlimited."""
    resumable: bool = True
    priority: Annotated[int, Meta(ge=-1_000, le=1_000)] = 0
    kind: Kind = "batch"
    may_run_unallocated: bool = False
    payload: Payload
    array: Annotated[int, Meta(ge=1, le=MAX_ARRAY)] | UnsetType = UNSET
    """So many jobs like this one, told apart by ALLMENDE_ARRAY_INDEX (decision 0037). Where unset, nothing is encoded."""
