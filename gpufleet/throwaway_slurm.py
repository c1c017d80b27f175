"""A real Slurm of one's own, for tests and measurements.

munged, slurmctld and any number of slurmd run on this machine, on loopback, as root or as any user.
GPUs are faked: each is a link to /dev/null, which is what Slurm needs to hand out CUDA_VISIBLE_DEVICES.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from gpufleet.throwaway import free_port, wait_until

NEEDED = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CONF = """\
ClusterName=gpufleet
SlurmctldHost=localhost
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={d}/run/munge.sock
CredType=cred/munge
{more}{jwt}CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool/%n
SlurmctldPidFile={d}/run/slurmctld.pid
SlurmdPidFile={d}/run/slurmd.%n.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd.%n.log
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,bf_continue,sched_min_interval=100000,batch_sched_delay=0
GresTypes=gpu{kinds}
TopologyPlugin=topology/tree
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
SlurmdTimeout=10
MessageTimeout=20
DefMemPerCPU=100
JobRequeue=0
PropagateResourceLimits=NONE
NodeName={nodes} NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] \
SocketsPerBoard=2 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=1000000 Gres={gres} Feature=h100 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """The Debian package of the first program that is not installed; empty: all are."""
    return next((package for program, package in NEEDED.items() if shutil.which(program, path=PATH) is None), "")


class Slurm:
    def __init__(
        self,
        *,
        nodes: int = 4,
        gpus: int = 8,
        leaf: int = 2,
        more: str = "",
        mig: Mapping[str, int] | None = None,
        shares: str = "",
        tracking: str = "linuxproc",
        place: Path | None = None,
    ) -> None:
        """`mig`: so many instances of each profile besides the whole GPUs of a node. `shares`: mps or shard, so that whole GPUs can be shared.
        `tracking`: linuxproc finds all that a job has started and reads all of /proc several times a job; pgid costs little, as cgroups do.
        `place`: where its folder is made; else where all temporary ones are."""
        # Not pytest's folder: a socket's path may have 108 bytes.
        self.dir = d = Path(tempfile.mkdtemp(prefix="gf-", dir=place))
        d.chmod(0o755)
        for sub in ("etc", "state", "spool", "log", "run", "dev"):
            (d / sub).mkdir()
        self.names = [f"gpu{number:03d}" for number in range(1, nodes + 1)]
        port, ports = free_port(), [free_port() for _ in range(nodes)]
        for number in range(gpus):
            (d / f"dev/nvidia{number}").symlink_to("/dev/null")
        (d / "etc/munge.key").write_bytes(os.urandom(128))
        (d / "etc/jwt.key").write_bytes(os.urandom(32))
        for key in ("munge.key", "jwt.key"):
            (d / "etc" / key).chmod(0o600)
        range_of = f"gpu[{self.names[0][3:]}-{self.names[-1][3:]}]"
        numbers = iter(range(sum((mig or {}).values())))
        lines = [f"NodeName={range_of} Name=gpu Type=h100 File={d}/dev/nvidia[0-{gpus - 1}]"]
        gres = [f"gpu:h100:{gpus}"]
        for profile, count in (mig or {}).items():
            files = [f"{d}/dev/mig{next(numbers)}" for _ in range(count)]
            for file in files:
                Path(file).symlink_to("/dev/null")
            lines += [f"NodeName={range_of} Name=gpu Type={profile} File={file}" for file in files]
            gres.append(f"gpu:{profile}:{count}")
        if shares:
            count = gpus * {"mps": 100, "shard": 4}[shares]
            lines.append(f"NodeName={range_of} Name={shares} Count={count} File={d}/dev/nvidia[0-{gpus - 1}]")
            gres.append(f"{shares}:{count}")
        text = CONF.format(
            d=d,
            gres=",".join(gres),
            kinds=f",{shares}" if shares else "",
            port=port,
            first=ports[0],
            last=ports[-1],
            user=pwd.getpwuid(os.getuid()).pw_name,
            nodes=range_of,
            more=more,
            tracking=tracking,
            jwt=f"AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={d}/etc/jwt.key\n" if self.has_jwt() else "",
        )
        text = text.replace(f"Port=[{ports[0]}-{ports[-1]}]", f"Port=[{','.join(map(str, ports))}]")
        (d / "etc/slurm.conf").write_text(text)
        (d / "etc/gres.conf").write_text("\n".join(lines) + "\n")
        leaves = [self.names[first : first + leaf] for first in range(0, nodes, leaf)]
        lines = [f"SwitchName=leaf{number} Nodes={','.join(group)}" for number, group in enumerate(leaves)]
        (d / "etc/topology.conf").write_text("\n".join([*lines, f"SwitchName=spine Switches=leaf[0-{len(leaves) - 1}]"]) + "\n")
        (d / "etc/cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
        self.conf = d / "etc/slurm.conf"
        self.env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.conf)}
        # For each step slurmstepd looks at the machine, and loads OpenCL and X11 for that where hwloc's plugins are installed: 3 ms a job. It reads
        # what a node has found of it at its start, as far as that is there.
        self.node_env = self.env | {"HWLOC_PLUGINS_PATH": str(d / "none"), "HWLOC_XMLFILE": str(d / "etc/machine.xml"), "HWLOC_THISSYSTEM": "1"}
        self.start()

    @staticmethod
    def has_jwt() -> bool:
        return any(Path("/usr/lib").glob("*/slurm*/auth_jwt.so"))

    def sh(self, *command: object, check: bool = True, seconds: float = 15, env: Mapping[str, str] | None = None) -> str:
        done = subprocess.run([str(part) for part in command], env=env or self.env, capture_output=True, text=True, timeout=seconds, check=False)
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def start(self) -> None:
        d = self.dir
        self.sh(
            "munged", f"--key-file={d}/etc/munge.key", f"--socket={d}/run/munge.sock", f"--pid-file={d}/run/munged.pid",
            f"--log-file={d}/log/munged.log", f"--seed-file={d}/run/munge.seed", "--num-threads=4", "--force",
        )  # fmt: skip
        self.start_controller("-c")
        for name in self.names:
            self.start_node(name)
        wait_until(lambda: self.idle() == set(self.names), seconds=60, what="every node of Slurm to be idle")
        found = d / "spool" / self.names[0] / "hwloc_topo_whole.xml"
        if found.exists():
            shutil.copy(found, d / "etc/machine.xml")

    def idle(self) -> set[str]:
        return set(self.sh("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False).split())

    def start_controller(self, *flags: str) -> None:
        self.sh("slurmctld", *flags)

    def start_node(self, name: str) -> None:
        self.sh("slurmd", "-N", name, env=self.node_env)

    def saved(self, comment: str) -> None:
        """Until the state on disk knows the job of a comment as it is now: a controller that is killed sooner forgets it."""
        number = next(line.split(" ", 1)[0] for line in self.sh("squeue", "-h", "-o", "%i %k").splitlines() if comment in line)
        self.sh("scontrol", "update", f"JobId={number}", f"AdminComment=saved-{number}")

        def is_written() -> bool:
            with contextlib.suppress(FileNotFoundError):  # before the first time, and for a moment each time
                return f"saved-{number}".encode() in (self.dir / "state/job_state").read_bytes()
            return False

        wait_until(is_written, what=f"the state of job {number} to be saved")

    def end(self, program: str, sent: signal.Signals = signal.SIGTERM) -> None:
        """`slurmctld`, or `slurmd.gpu001`. A controller that is asked to end saves its state first."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            pid = int((self.dir / f"run/{program}.pid").read_text())
            os.kill(pid, sent)
            wait_until(lambda: not self._alive(pid), seconds=30, what=f"{program} to be gone")

    @staticmethod
    def _alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def _are_gone(self, pids: list[int]) -> bool:
        return not any(map(self._alive, pids))

    def stop(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.sh("scancel", "--state=PENDING,RUNNING", "-u", pwd.getpwuid(os.getuid()).pw_name, check=False, seconds=5)
        run = self.dir / "run"
        for group in (sorted(run.glob("slurmd.*.pid")), [run / "slurmctld.pid"], [run / "munged.pid"]):  # munged last
            pids = []
            for file in group:
                with contextlib.suppress(OSError, ValueError):
                    pids.append(int(file.read_text()))
            for sent in (signal.SIGTERM, signal.SIGKILL):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, sent)
                with contextlib.suppress(AssertionError):
                    wait_until(partial(self._are_gone, pids), seconds=3)
                    break
        mark = f"SLURM_CONF={self.conf}".encode()
        for entry in Path("/proc").iterdir():  # what slurmd left behind: steps and processes of jobs, of this cluster only
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        os.kill(int(entry.name), signal.SIGKILL)
        shutil.rmtree(self.dir, ignore_errors=True)
