"""What the process agent knows of its machine: accounts, clock since boot, GPUs. Decides nothing."""

import getpass
import os
import pwd
import socket
from pathlib import Path

from allmende.agent.process.accounts import Account, as_person
from allmende.agent.process.keeper import boot_ms as boot_ms
from allmende.agent.process.nvml import Nvml
from allmende.agent.sdk.backend import NodeState
from allmende.chassis.errors import Misconfigured


def boot_id() -> str:
    """Names this start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def own_account() -> Account:
    """Whom this process runs as. An account without an entry is called what the environment says."""
    try:
        return _account(pwd.getpwuid(os.geteuid()))
    except KeyError:
        return Account(getpass.getuser(), os.geteuid(), os.getegid(), (), "/", "/bin/sh")


def find_account(name: str) -> Account | None:
    """An account by its name."""
    try:
        return _account(pwd.getpwnam(name))
    except KeyError:
        return None


def _account(entry: pwd.struct_passwd) -> Account:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell)


def node_of(name: str, gpus: int | None, nvml: Nvml | None) -> NodeState:
    """This machine as a node.

    Raises:
        Misconfigured: it has no GPU that can be found, and nobody said how many it has.
    """
    node = as_person(name or socket.gethostname())
    if not node:
        raise Misconfigured(f"the machine's name {name or socket.gethostname()!r} has no letter: set ALLMENDE_PROCESS_NODE")
    found = nvml.gpus() if nvml else ()
    count = len(found) if gpus is None else gpus
    if not count:
        raise Misconfigured("NVML finds no GPU on this machine: set ALLMENDE_PROCESS_GPUS to how many jobs may share it as")
    model = as_person(found[0].model.replace(" ", "-")) if found else None
    return NodeState(node, count, count, model or None)


def open_nvml() -> Nvml | None:
    """NVIDIA's library, where this machine has it."""
    try:
        return Nvml()
    except (OSError, AttributeError):
        return None
