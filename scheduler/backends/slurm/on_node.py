#!/usr/bin/python3 -I
"""Slurm runs this on a node as the prolog and as the epilog of each job. It needs nothing but Python 3.9 and stands alone there.

Before the start of a job of gpufleet it checks that the node has what the job's comment promises, and afterwards that nothing of the job is left.
What does not hold drains the node, and the reason (`gpufleet-verify JOB start|end CODE: words`) is what the console shows. It never touches jobs of
others: any user can write any comment, so what counts is the user that a job runs as, which the settings name.
`gpufleet slurm prolog --write FOLDER` installs it (docs/operate/slurm.md). No text of a job reaches a shell.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

VERSION = "2"
# Why a node refuses a job; docs/reasons.md has an entry for each.
REFUSALS = {
    "promise": "The job states a promise that this version cannot read.",
    "devices": "The GPUs of the job are not the promised ones, or Slurm does not confine jobs to their GPUs.",
    "mig": "A GPU is split with MIG although whole GPUs are promised, or the MIG instances are not the promised ones.",
    "mps": "An MPS daemon shares the GPUs of the job, or the MPS limit is not the promised one.",
    "cores": "The job has fewer processors than promised, or Slurm does not pin it to them.",
    "leftover": "Processes or GPU memory of an earlier job are left on the node.",
    "scratch": "The scratch folder of an ended job could not be removed.",
    "check": "A check could not be carried out.",
}
COMMENT = re.compile(r"gpufleet (?P<tag>[0-9a-f]+) [\w.-]+ [0-9]+ [0-9]+(?: (?P<promise>\S+))?")
KNOWN = re.compile(
    r"v[12]:gpus=(?P<gpus>[0-9]+):cpus=(?P<cpus>[0-9]+)(?P<mig>(?::mig=[0-9]+g\.[0-9]+gb(?:\+me)?\*[0-9]+)*)(?::(?P<way>mps|shard)=(?P<share>[0-9]+))?"
)
# GPUs of the node by type, as Slurm numbers them through, and MIG instances as the driver lists them.
GPU_TYPES = re.compile(r"(?:^|,)gpu(?::([^:,()]+))?:([0-9]+)(?=[,(]|$)")
MIG_TYPE = re.compile(r"(?:^|_)([0-9]+g\.[0-9]+gb(?:\+me)?)$")
MIG_LISTED = re.compile(r"\s*MIG ([0-9]+g\.[0-9]+gb(?:\+me)?)\s+Device\s+[0-9]+: \(UUID: (\S+)\)")
YES = ("yes", "true", "up", "1")  # as Slurm reads them, in any case
IDLE_MIB = 1024  # a driver keeps some memory of a GPU for itself
SECONDS = 5.0  # for what was killed to be gone
PATHS = os.pathsep.join(["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin", "/opt/slurm/bin"])


class Refused(Exception):
    def __init__(self, code, words):
        super().__init__(words)
        self.code, self.words = code, words


def gpus_given(env):
    """Indices of the job's GPUs on this node, as Slurm gave them: `0,1` or `0-3`."""
    found: list[int] = []
    for span in filter(None, env.get("SLURM_JOB_GPUS", "").split(",")):
        low, dash, high = span.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise Refused("devices", f"Slurm gave GPUs {span!r}, which are not whole ones.")
        found += range(int(low), int(high if dash else low) + 1)
    return found


def cpus_given(env):
    """The fewest processors that the job has on one of its nodes, of `4(x2),3`."""
    counts = re.findall(r"([0-9]+)(?:\(x[0-9]+\))?", env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return min(map(int, counts), default=0)


def settings_of(path):
    """A file of Slurm as keys and values, with the files that it includes."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        line = line.partition("#")[0].strip()
        if line.lower().startswith("include "):
            found.update(settings_of(path.parent / line.split(None, 1)[1]))
        elif "=" in line and not line.lower().startswith(("nodename", "partitionname")):
            name, _, value = line.partition("=")
            found[name.strip().lower()] = value.strip()
    return found


def check_confined(env):
    """Slurm is to keep a job to its processors and devices; a promise that nobody enforces is none."""
    conf = Path(env.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
    plugin = settings_of(conf).get("taskplugin", "task/none").lower()
    cgroup = settings_of(conf.parent / "cgroup.conf")
    by_cgroup = "cgroup" in plugin
    if not (by_cgroup and cgroup.get("constraincores", "no").lower() in YES) and "affinity" not in plugin:
        raise Refused("cores", f"TaskPlugin={plugin} pins no job to its processors.")
    if not (by_cgroup and cgroup.get("constraindevices", "no").lower() in YES):
        raise Refused("devices", "ConstrainDevices=yes is not set in cgroup.conf: a job could open any GPU.")


def asked(config, *query):
    """Rows of what nvidia-smi says, cell by cell."""
    text = answer(config, *query, "--format=csv,noheader,nounits")
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]


def answer(config, *query):
    command = [config["nvidia_smi"], *query]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise Refused("check", f"{config['nvidia_smi']}: {fault}") from None
    if done.returncode:
        raise Refused("check", f"nvidia-smi: {' '.join((done.stdout + done.stderr).split())[:100]}")
    return done.stdout


def devices_of(config):
    """GPUs of the node by index, as the driver counts them."""
    return {row[0]: row for row in asked(config, "--query-gpu=index,uuid,mig.mode.current,memory.used") if len(row) == 4}


def check_gpus(config, gpus, *, after):
    """That each GPU answers, is whole and is used by nobody."""
    if not config.get("nvidia_smi") or not gpus:
        return
    devices = devices_of(config)
    running: dict[str, list[str]] = {}
    for row in asked(config, "--query-compute-apps=gpu_uuid,pid"):
        running.setdefault(row[0], []).append(row[-1])
    for index in gpus:
        if str(index) not in devices:
            raise Refused("devices", f"GPU {index} does not answer.")
        _, uuid, mig, used = devices[str(index)]
        if mig == "Enabled":
            raise Refused("mig", f"GPU {index} is split with MIG; whole GPUs are promised.")
        if uuid in running:
            raise Refused("leftover", f"Process {', '.join(running[uuid][:3])} {'still uses' if after else 'already uses'} GPU {index}.")
        if used.isdigit() and int(used) > IDLE_MIB:
            raise Refused("leftover", f"GPU {index} holds {used} MiB and nothing runs on it.")


def processes():
    """Process ids, names and environments on this machine, as far as they can be read."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "comm").read_text().strip()
                env = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            yield int(entry.name), name, env


def check_mps(gpus):
    """No MPS daemon of the node itself shares the GPUs. One of another job reaches that job's GPUs only."""
    for pid, name, env in processes():
        if not name.startswith("nvidia-cuda-mps") or any(word.startswith(b"SLURM_JOB_ID=") for word in env):
            continue
        shown = next((word.partition(b"=")[2].decode(errors="replace") for word in env if word.startswith(b"CUDA_VISIBLE_DEVICES=")), "")
        mine = {part for part in shown.split(",") if part.isdigit()}
        if not mine or mine & set(map(str, gpus)):
            raise Refused("mps", f"An MPS daemon (process {pid}) shares GPUs of the job.")


def kinds_of_node(env):
    """The MIG profile of each GPU of the node as Slurm numbers them, empty of a whole one, and which it is of the node's own of that kind."""
    each: list[tuple[str, int]] = []
    seen: dict[str, int] = {}
    for kind, count in GPU_TYPES.findall(called("sinfo", "--noheader", "--Node", f"--nodes={env.get('SLURMD_NODENAME', '')}", "--format=%G").strip()):
        found = MIG_TYPE.search(kind)
        profile = found[1] if found else ""
        first = seen.get(profile, 0)
        each += [(profile, first + number) for number in range(int(count))]
        seen[profile] = first + int(count)
    return each


def kinds_given(env, each):
    """The same of the GPUs that Slurm gave, of `each` of the node."""
    given = gpus_given(env)
    if not each:
        raise Refused("check", "sinfo does not tell the GPUs of the node.")
    if any(index >= len(each) for index in given):
        raise Refused("devices", f"Slurm gave GPUs {','.join(map(str, given))}; the node has {len(each)}.")
    return [each[index] for index in given]


def whole_given(config, env, *, after):
    """The whole GPUs of the job as the driver counts them. Slurm numbers MIG instances through with whole GPUs, so that on a node with both a number
    of Slurm names another device to the driver; the order of the whole ones is the same."""
    gpus = gpus_given(env)
    if not gpus or not config.get("nvidia_smi"):
        return gpus
    devices = devices_of(config)
    whole = sorted(int(index) for index, _, mig, _ in devices.values() if mig != "Enabled")
    if len(whole) == len(devices):
        return gpus
    each = kinds_of_node(env)
    if not each and after:
        return []  # a controller that is away drains no node: the next job is checked before its start
    own = [number for profile, number in kinds_given(env, each) if not profile]
    if not any(profile for profile, _ in each):
        return gpus
    if any(number >= len(whole) for number in own):
        raise Refused("mig", f"Slurm gave whole GPU number {max(own)} of the node; the driver has {len(whole)} that are not split.")
    return [whole[number] for number in own]


def check_mig(config, given, wanted):
    """That Slurm gave so many instances of each profile, that the driver has them, and that nobody uses one."""
    for profile, count in wanted.items():
        had = sum(one == profile for one, _ in given)
        if had != count:
            raise Refused("mig", f"{count} MIG instances {profile} are promised, Slurm gave {had}.")
    if not config.get("nvidia_smi"):
        return
    there: dict[str, list[str]] = {}
    for line in answer(config, "-L").splitlines():
        if found := MIG_LISTED.fullmatch(line.rstrip()):
            there.setdefault(found[1], []).append(found[2])
    running = {row[0]: row[-1] for row in asked(config, "--query-compute-apps=gpu_uuid,pid")}
    for profile, number in given:
        own = there.get(profile, [])
        if profile and number >= len(own):
            raise Refused("mig", f"MIG instance {profile} number {number} does not exist; the node has {len(own)}.")
        if profile and own[number] in running:
            raise Refused("leftover", f"Process {running[own[number]]} already uses the MIG instance {own[number]}.")


def check_share(config, env, gpus, way, share):
    """A share of one GPU. A limit of MPS holds only where the daemon of the node runs; shards have no limit that could be checked."""
    if config.get("nvidia_smi"):
        devices = devices_of(config)
        if str(gpus[0]) not in devices:
            raise Refused("devices", f"GPU {gpus[0]} does not answer.")
        if devices[str(gpus[0])][2] == "Enabled":
            raise Refused("mig", f"GPU {gpus[0]} is split with MIG; a share of a whole one is promised.")
    if way != "mps":
        return
    limit = env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")
    if limit != share:
        raise Refused("mps", f"A limit of {share}% is promised, Slurm set {limit or 'none'}.")
    if config.get("confined", True) and not any(name.startswith("nvidia-cuda-mps") for _, name, _ in processes()):
        raise Refused("mps", "No MPS daemon runs on the node: nothing keeps jobs to their limits.")


def ours(config, env, tag):
    """Whether a job with such a comment runs as the user of gpufleet's jobs, and is of a console that the settings name, if they name any."""
    return env.get("SLURM_JOB_USER", "") in config["users"] and (not config["tags"] or tag in config["tags"])


def prolog(config, env, text):
    if not text:
        return  # submitted before promises were
    promise = KNOWN.fullmatch(text)
    if promise is None:
        raise Refused("promise", f"{text[:60]!r} is not of version {VERSION}: write the prolog again with this console's gpufleet.")
    gpus, wanted = gpus_given(env), int(promise["gpus"])
    mig = {profile: int(count) for profile, count in re.findall(r":mig=([^*:]+)\*([0-9]+)", promise["mig"])}
    given = kinds_given(env, kinds_of_node(env)) if mig else [("", index) for index in gpus]
    whole = [number for profile, number in given if not profile]
    if not promise["way"] and len(whole) != wanted:
        raise Refused("devices", f"{wanted} GPUs are promised, Slurm gave {len(whole)}.")
    if cpus_given(env) < int(promise["cpus"]):
        raise Refused("cores", f"{promise['cpus']} processors are promised, Slurm gave {cpus_given(env)}.")
    if (os.cpu_count() or 1) < int(promise["cpus"]):
        raise Refused("cores", f"{promise['cpus']} processors are promised, the node has {os.cpu_count()}.")
    if config.get("confined", True):
        check_confined(env)
    if promise["way"] and len(gpus) != 1:
        raise Refused("devices", f"A share of one GPU is promised, Slurm gave {len(gpus)} GPUs.")
    gpus = whole_given(config, env, after=False)
    if not mig and len(gpus) != len(given):
        raise Refused("mig", "Slurm gave a MIG instance; whole GPUs are promised.")
    if promise["way"]:
        check_share(config, env, gpus, promise["way"], promise["share"])
        return
    if gpus or mig:
        check_mps(gpus)
    check_mig(config, given, mig)
    check_gpus(config, gpus, after=False)


def left(env):
    """Processes of the job on this node. Of programs that Slurm itself runs for the job, as this one, it says so."""
    marks = {f"SLURM_JOB_ID={env['SLURM_JOB_ID']}".encode(), f"SLURMD_NODENAME={env.get('SLURMD_NODENAME', '')}".encode()}
    for pid, _name, words in processes():
        if marks <= set(words) and pid not in (os.getpid(), os.getppid()) and not any(word.startswith(b"SLURM_SCRIPT_CONTEXT=") for word in words):
            yield pid


def epilog(config, env, text):
    # Of a part of a GPU others use the rest: what its GPU holds is not this job's alone.
    is_whole = not (":mig=" in text or ":mps=" in text or ":shard=" in text)
    until = time.monotonic() + SECONDS
    while pids := list(left(env)):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > until:
            raise Refused("leftover", f"Process {', '.join(map(str, pids[:3]))} of the job cannot be ended.")
        time.sleep(0.1)
    whole = whole_given(config, env, after=True) if is_whole else []  # behind the processes: a driver that does not answer keeps none of them
    while True:
        try:
            check_gpus(config, whole, after=True)
            break
        except Refused as fault:
            if fault.code != "leftover" or time.monotonic() > until:
                raise
            time.sleep(0.5)  # the driver frees memory a moment after the end of a process
    if config.get("scratch"):
        folder = Path(config["scratch"]) / str(int(env["SLURM_JOB_ID"]))
        try:
            if folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)
            elif os.path.lexists(folder):
                folder.unlink()
        except OSError as fault:
            raise Refused("scratch", f"{folder}: {fault.strerror}.") from None


def is_epilog(env):
    return env.get("SLURM_SCRIPT_CONTEXT", "").startswith("epilog")


def refuse(env, fault):
    """Drain the node: what is told there is told by root alone, so that no job can speak for a node."""
    job, node = env.get("SLURM_JOB_ID", ""), env.get("SLURMD_NODENAME", "")
    reason = f"gpufleet-verify {job} {'end' if is_epilog(env) else 'start'} {fault.code}: {fault.words}"
    print(reason, file=sys.stderr)
    # Slurm runs the epilog of a job that was refused as well: why it was stays said.
    if node and not (is_epilog(env) and said_of(node).startswith(f"gpufleet-verify {job} start ")):
        called("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason[:200]}")
    return 1


def said_of(node):
    return called("sinfo", "--noheader", f"--nodes={node}", "--format=%E").strip()


def called(name, *arguments):
    """What a command of Slurm prints. Should it not be there, Slurm drains the node itself, without the words."""
    program = shutil.which(name, path=PATHS)
    if program is None:
        return ""
    try:
        return subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=15, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as silent:
        print(f"{name}: {silent}", file=sys.stderr)
        return ""


def main(env):
    found = COMMENT.fullmatch(env.get("SLURM_JOB_COMMENT", "").strip())
    if found is None:
        return 0
    try:
        config = json.loads((Path(__file__).resolve().parent / ".verify.json").read_text())
        if not ours(config, env, found["tag"]):
            return 0
        if is_epilog(env):
            epilog(config, env, found["promise"] or "")
        else:
            prolog(config, env, found["promise"])
    except Refused as fault:
        return refuse(env, fault)
    except Exception as fault:  # whatever cannot be checked is not promised
        return refuse(env, Refused("check", f"{type(fault).__name__}: {fault}"))
    return 0


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
