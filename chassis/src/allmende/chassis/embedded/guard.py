"""A small process between us and a server: the server never outlives us, even when we are killed with -9.

Started as a script of its own, so it imports nothing of Allmende. It holds one end of a pipe as its standard input; when the other
end closes, because we closed it or because we died, it stops the server, removes what it was told to, and ends. On Linux the server
also dies when the guard does. It starts the server as another user where asked: PostgreSQL refuses to run as root.

    guard.py STOP_SIGNAL REMOVE_DIR USER PROGRAM ARGUMENTS...      REMOVE_DIR and USER may be `-`

Writes the server's process id as one line to standard output; the server's own output goes to standard error.
"""

import ctypes
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys

# How long a server may take to stop before it is killed.
STOP_S = 8.0

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_SECUREBITS = 28
# access(2) forgets capabilities of whoever is not root, unless this bit is set; initdb looks for its programs with access(2).
_NO_SETUID_FIXUP = 1 << 2
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
# capability(7): CAP_DAC_OVERRIDE is bit 1, CAP_DAC_READ_SEARCH bit 2. Containers often have the first one only.
_PASS_FOLDERS = (1, 2)
_CAPABILITY_VERSION_3 = 0x20080522


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilityData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def become(user: str) -> None:
    """Become a user for good, in a child that is about to start a server.

    On Linux the right to pass folders is kept where we have it: a checkout below root's home, whose folder nobody else may enter,
    must work without opening that folder to everybody.
    """
    entry = pwd.getpwnam(user)
    linux = sys.platform == "linux"
    libc = ctypes.CDLL(None, use_errno=True) if linux else None
    if libc is not None:
        libc.prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0)
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([entry.pw_gid])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    if libc is None:
        return
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapabilityData * 2)()
    libc.capget(ctypes.byref(header), ctypes.byref(data))
    kept = data[0].permitted & sum(1 << bit for bit in _PASS_FOLDERS)
    data[0] = _CapabilityData(kept, kept, kept)
    data[1] = _CapabilityData(0, 0, 0)
    libc.capset(ctypes.byref(header), ctypes.byref(data))
    for bit in _PASS_FOLDERS:
        if kept >> bit & 1:
            libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, bit, 0, 0)


def _die_with_parent(stop: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, stop, 0, 0, 0)


def main(arguments: list[str]) -> int:
    """Run one server until it ends or the pipe closes; its exit code, or 128 + signal."""
    stop = signal.Signals[arguments[0]]
    remove, user, *command = arguments[1:]

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        if user != "-":
            become(user)
        # Last: becoming another user takes the signal away again.
        _die_with_parent(stop)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Ours is a session of its own; whoever ends the guard ends the server.
    signal.signal(signal.SIGTERM, lambda *_: None)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=prepare)
    try:
        sys.stdout.write(f"{server.pid}\n")
        sys.stdout.flush()
    except OSError:
        pass
    try:
        while server.poll() is None:
            ready, _, _ = select.select([0, reader], [], [])
            woken = os.read(reader, 64) if reader in ready else b""
            if (0 in ready and not os.read(0, 64)) or signal.SIGTERM in woken:
                break
        return _stop(server, stop)
    finally:
        if remove != "-":
            shutil.rmtree(remove, ignore_errors=True)


def _stop(server: "subprocess.Popen[bytes]", stop: signal.Signals) -> int:
    if server.poll() is None:
        server.send_signal(stop)
        try:
            server.wait(STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
    code = server.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
