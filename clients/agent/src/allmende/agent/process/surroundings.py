"""The environment of a replica: what its submitter asked for, and above it what the agent promises. Pure."""

from pathlib import Path
from typing import NamedTuple

from allmende.agent.process.accounts import Account
from allmende.agent.sdk.backend import Launch, ReplicaPlace
from allmende.proto.units import MINUTE_MS, Ms

MARK = "ALLMENDE_ATTEMPT"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Long enough to write a large checkpoint, and never most of a short slice.
NOTICE_MOST_MS: Ms = 5 * MINUTE_MS
NOTICE_PART = 10
# Files in an attempt's folder.
NOTICE, WARNING = "notice", "warning"
SIGNALS = {"USR1": b"1", "USR2": b"2"}


class Notice(NamedTuple):
    """How a job wants to hear that its slice is about to end: so long before, and by which order to the keeper (empty: none)."""

    before_ms: Ms
    order: bytes


def notice_of(environment: dict[str, str], slice_ms: Ms) -> Notice:
    """What the job's own environment asks for. What cannot be read is as if it were unset: a notice never fails a job."""
    before_ms = min(NOTICE_MOST_MS, slice_ms // NOTICE_PART)
    asked = environment.get("ALLMENDE_NOTICE_MS", "")
    if asked.isascii() and asked.isdigit() and len(asked) < 12:
        before_ms = min(int(asked), slice_ms)
    return Notice(before_ms, SIGNALS.get(environment.get("ALLMENDE_NOTICE_SIGNAL", "").removeprefix("SIG"), b""))


def environment_of(launch: Launch, place: ReplicaPlace, account: Account, checkpoint: Path, folder: Path) -> dict[str, str]:
    """All variables of one replica. `folder`: its attempt's."""
    devices = ",".join(str(device) for device in place.devices)
    login = {"PATH": DEFAULT_PATH, "HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
    return (
        login
        | launch.payload.environment
        | {
            MARK: launch.attempt,
            "ALLMENDE_JOB": launch.job,
            "ALLMENDE_REPLICA": str(place.replica),
            "ALLMENDE_REPLICAS": str(len(launch.places)),
            "ALLMENDE_GPUS": str(launch.gpus_per_replica),
            "ALLMENDE_SLICE_MS": str(launch.slice_ms),
            "ALLMENDE_CHECKPOINT_FILE": str(checkpoint),
            "ALLMENDE_NOTICE_FILE": str(folder / NOTICE),
            "ALLMENDE_WARNING_FILE": str(folder / WARNING),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": devices,
        }
    )
