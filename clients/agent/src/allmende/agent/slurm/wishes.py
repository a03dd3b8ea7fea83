"""What a held job of Slurm's asks of Allmende: its id, and its slice. Pure.

The id is made of cluster, job number and first submit time, because Slurm uses numbers again. A requeue changes the submit time, so
the id is written into the job's AdminComment, which users cannot write, and is read from there ever after.
"""

import hashlib
import re
from typing import NamedTuple

from allmende.agent.slurm.output import SlurmJob
from allmende.proto.ids import ENTROPY_BYTES, ID_LENGTH, make_id
from allmende.proto.units import Ms, parse_duration

MARK = "allmende:"

_MARK = re.compile(rf"{MARK}([0-7][0-9a-hjkmnp-tv-z]{{{ID_LENGTH - 1}}})\Z", re.ASCII)
_WORDS = re.compile(r"[\s,;|]+")


class Refused(NamedTuple):
    """Why a job is not submitted; its user reads it in `squeue`."""

    sentence: str


def id_of(cluster: str, job: SlurmJob) -> str:
    """The job's id with us. The same job has the same id for every agent that sees it, in any run and after any requeue."""
    if (marked := _MARK.match(job.admin_comment)) is not None:
        return marked[1]
    words = f"{cluster}\0{job.number}\0{job.submitted_at_ms}"
    return make_id(job.submitted_at_ms, hashlib.sha256(words.encode()).digest()[:ENTROPY_BYTES])


def mark_of(job_id: str) -> str:
    """The AdminComment that carries an id."""
    return f"{MARK}{job_id}"


def slice_of(job: SlurmJob, default_ms: Ms) -> Ms | Refused:
    """The slice: `slice=2h` in the comment, else --time-min, else the default, at most the time limit where that is a guess."""
    said = [word.removeprefix("slice=") for word in _WORDS.split(job.comment) if word.startswith("slice=")]
    if len(said) > 1:
        return Refused("the comment names more than one slice")
    if said:
        try:
            return parse_duration(said[0])
        except ValueError as error:
            return Refused(f"the slice in the comment: {error}"[:200])
    if job.time_min_ms is not None:
        return job.time_min_ms
    return min(default_ms, job.time_limit_ms) if job.time_limit_ms is not None else default_ms
