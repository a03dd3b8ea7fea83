"""A real Slurm for tests: munge, MariaDB, slurmdbd, slurmctld and several slurmd, in one folder, on random ports, gone afterwards.

    with real_slurm(nodes=4, gpus=8) as slurm:
        number = slurm.batch("--gres=gpu:2", "--account=vision", script="sleep 60")
        slurm.run("scontrol", "release", number)

GPUs are plain empty files, which is all that Slurm counts by. Accounting is slurmdbd's, as 22.05 has no other. It needs root:
slurmd starts jobs as whoever submitted them. Where it cannot run, `missing()` says what is not there.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "mariadb-install-db", "sbatch", "scontrol", "squeue", "sacct")
# Debian keeps daemons where only root's path looks.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
UP_S = 40
STEP_S = 0.05
ACCOUNTS = ("vision", "language", "robots")


def missing() -> str | None:
    """Why no Slurm can be started here; None: it can."""
    if os.geteuid() != 0:
        return "a real Slurm is started by root only: slurmd becomes whoever submitted a job"
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if absent:
        return f"no {', '.join(absent)} here; Debian has them in slurm-wlm, slurmdbd, munge and mariadb-server"
    return None


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all are held until all are known, so no two are the same."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


class RealSlurm:
    """One cluster. `environment` is what its commands need."""

    def __init__(self, folder: Path, nodes: int, gpus: int, model: str) -> None:
        self.folder, self.gpus, self.model = folder, gpus, model
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.cluster = "lab"
        self._ports = free_ports(3 + nodes)
        self._password = secrets.token_hex(16)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: Mapping[str, str] = {
            "PATH": PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "SLURM_TIME_FORMAT": "%s",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }

    # ----------------------------------------------------------------------------------------------------------------- commands

    def run(self, *words: str, check: bool = True, user: str | None = None) -> str:
        """What a command of Slurm's says on its standard output.

        Raises:
            AssertionError: it failed and `check` is set.
        """
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=30, user=user, cwd="/")
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
        return done.stdout

    def batch(self, *options: str, script: str, user: str | None = None) -> str:
        """Submit a script as somebody of this machine; returns the job's number. Its output goes nowhere."""
        words = ("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script)
        return self.run(*words, user=user).strip().partition(";")[0]

    def until(self, sentence: str, true: Callable[[], bool], within_s: float = UP_S) -> None:
        """Wait for a fact.

        Raises:
            AssertionError: it did not become true; with the daemons' last words.
        """
        until_s = time.monotonic() + within_s
        while not true():
            died = [name for name, process in self._daemons.items() if process.poll() is not None]
            assert not died, f"{', '.join(died)} ended: {sentence}\n{self.last_words()}"
            assert time.monotonic() < until_s, f"not within {within_s} s: {sentence}\n{self.last_words()}"
            time.sleep(STEP_S)

    def last_words(self) -> str:
        """The ends of all logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"-- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-12:]) for log in logs)

    # ------------------------------------------------------------------------------------------------------------------ daemons

    def start(self) -> None:
        """Everything, in the order in which one needs the other; returns when all nodes are idle and accounts are known."""
        self._write()
        self._munge()
        self._database()
        self.daemon("slurmdbd", "slurmdbd", "-D")
        self.until("slurmdbd answers", lambda: self._listens(1))
        self._answers("sacctmgr", "-i", "add", "cluster", self.cluster)
        for account in ACCOUNTS:
            self._answers("sacctmgr", "-i", "add", "account", account, f"cluster={self.cluster}")
            self._answers("sacctmgr", "-i", "add", "user", "root,nobody", f"account={account}", f"cluster={self.cluster}")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.until("every node is idle", lambda: self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split() == self._idle())

    def start_controller(self) -> None:
        """slurmctld, with the state that an earlier one left."""
        self.daemon("slurmctld", "slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        self.until("slurmctld answers", lambda: "UP" in self.run("scontrol", "ping", check=False))

    def start_node(self, node: str) -> None:
        """One slurmd."""
        self.daemon(node, "slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf"))

    def daemon(self, name: str, *words: str) -> None:
        """Start a program in a session of its own; its output is NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )

    def end(self, name: str, order: signal.Signals = signal.SIGTERM) -> None:
        """End one daemon and wait for it."""
        process = self._daemons.pop(name)
        process.send_signal(order)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)

    def stop(self) -> None:
        """End the jobs, then every daemon, the last started first. What a job left is ended with its slurmstepd."""
        if "slurmctld" in self._daemons:
            self.run("scancel", "--full", "--signal=KILL", "--state=RUNNING", check=False)
            self.run("scancel", "--user=root", check=False)
            self.run("scancel", "--user=nobody", check=False)
        steps = self._steps()
        for name in reversed(list(self._daemons)):
            self.end(name, signal.SIGKILL if name == "mariadbd" else signal.SIGTERM)
        for step in steps | self._steps():
            kill(step)

    # ----------------------------------------------------------------------------------------------------------------- its parts

    def _write(self) -> None:
        controller, database, _maria, *own = self._ports
        (self.folder / "state").mkdir()
        shutil.copy(Path(__file__).parents[2] / "deploy" / "slurm" / "job_submit.lua", self.folder)
        devices = []
        for node in self.nodes:
            for number in range(self.gpus):
                (self.folder / f"{node}-gpu{number}").touch()
            last = self.gpus - 1
            devices.append(f"NodeName={node} Name=gpu Type={self.model} File={self.folder}/{node}-gpu[0-{last}]")
        (self.folder / "gres.conf").write_text("\n".join(["AutoDetect=off", *devices, ""]))
        places = [
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=64 RealMemory=64000 "
            f"Gres=gpu:{self.model}:{self.gpus}"
            for node, port in zip(self.nodes, own, strict=True)
        ]
        conf = SLURM_CONF.format(folder=self.folder, cluster=self.cluster, controller=controller, database=database)
        (self.folder / "slurm.conf").write_text("\n".join([conf, *places, "PartitionName=gpu Nodes=ALL Default=YES State=UP", ""]))
        dbd = self.folder / "slurmdbd.conf"
        dbd.write_text(DBD_CONF.format(folder=self.folder, port=database, maria=self._ports[2], password=self._password))
        dbd.chmod(0o600)

    def _munge(self) -> None:
        key = self.folder / "munge" / "key"
        key.parent.mkdir(mode=0o755)
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o600)
        parts = [f"--{name}-file={key.parent}/{name}" for name in ("key", "pid", "log", "seed")]
        self.daemon("munged", "munged", "--foreground", "--force", f"--socket={key.parent}/socket", "--num-threads=4", *parts)
        self.until("munged listens", (key.parent / "socket").exists)

    def _database(self) -> None:
        data = self.folder / "maria"
        data.mkdir(mode=0o700)
        made = subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"],
            env=self.environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr + made.stdout
        first = self.folder / "first.sql"
        first.write_text(FIRST_SQL.format(password=self._password))
        first.chmod(0o600)
        self.daemon(
            "mariadbd", "mariadbd", "--no-defaults", f"--datadir={data}", "--user=root", f"--socket={data}/socket",
            "--bind-address=127.0.0.1", f"--port={self._ports[2]}", f"--init-file={first}", "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900",
        )  # fmt: skip
        self.until("MariaDB answers", lambda: self._listens(2))

    def _listens(self, which: int) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self._ports[which])) == 0

    def _answers(self, *words: str) -> None:
        # slurmdbd listens a moment before its tables are there.
        def answers() -> bool:
            return subprocess.run(words, env=self.environment, capture_output=True, timeout=30).returncode == 0

        self.until(" ".join(words), answers)

    def _idle(self) -> Sequence[str]:
        return ["idle"] * len(self.nodes)

    def _steps(self) -> set[int]:
        found = set()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and str(self.folder).encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
        return found - {os.getpid()}


def kill(process: int) -> None:
    """SIGKILL to a process that carries this cluster's folder in its environment, if it is still there."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def real_slurm(nodes: int = 2, gpus: int = 8, model: str = "h100") -> Iterator[RealSlurm]:
    """Start a cluster, and end it whatever happens. Its folder must be open to the users whose jobs it runs."""
    with TemporaryDirectory(prefix="slurm") as folder:
        Path(folder).chmod(0o755)
        slurm = RealSlurm(Path(folder), nodes, gpus, model)
        try:
            slurm.start()
            yield slurm
        finally:
            slurm.stop()


SLURM_CONF = """
ClusterName={cluster}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldParameters=enable_configless
SlurmdParameters=config_overrides
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
GresTypes=gpu
JobSubmitPlugins=lua
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1
PriorityType=priority/basic
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={database}
AccountingStoragePass={folder}/munge/socket
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations
AccountingStoreFlags=job_comment
JobRequeue=1
KillWait=5
MinJobAge=300
InactiveLimit=0
SlurmctldDebug=info
SlurmdDebug=info
"""

DBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/dbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={maria}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct
"""

FIRST_SQL = """
CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY '{password}';
CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED BY '{password}';
GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1';
GRANT ALL ON slurm_acct.* TO slurm@localhost;
"""
