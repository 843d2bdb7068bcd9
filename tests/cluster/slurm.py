"""A Slurm of two nodes with two GPUs each on this machine, started by hand: no service, no account and no GPU."""

import atexit
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1000
ReturnToService=0
KillWait=1
GresTypes=gpu
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=1000 Gres=gpu:2
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=1000 Gres=gpu:2
PartitionName=test Nodes=one,two Default=YES OverSubscribe=NO
"""


def missing() -> str:
    """Return why no Slurm can be started here; empty where it can."""
    if os.environ.get("SPEC_DEC_CLUSTER") == "0":
        return "SPEC_DEC_CLUSTER=0"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{', '.join(absent)}: not installed (apt-get install slurm-wlm)" if absent else ""


def start(folder: Path) -> dict[str, str]:
    """Start the daemons, which end with this process.

    Args:
        folder: an empty folder for configuration, state and logs.

    Returns:
        variables of the environment with which Slurm's commands find it.
    """
    ports, sockets = [], [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    for opened in sockets:
        ports.append(opened.getsockname()[1])
        opened.close()
    (folder / "state").mkdir()
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, ports=ports, host=socket.gethostname()))
    (folder / "gres.conf").write_text("NodeName=one,two Name=gpu File=/dev/null,/dev/zero\n")
    (folder / "cgroup.conf").touch()
    environment = {"SLURM_CONF": str(configuration)}
    daemons = [["slurmctld", "-D"], ["slurmd", "-D", "-N", "one"], ["slurmd", "-D", "-N", "two"]]
    for daemon in daemons:
        with (folder / "daemons.log").open("ab") as log:
            process = subprocess.Popen(daemon, env={**os.environ, **environment}, stdout=log, stderr=log)
        atexit.register(process.kill)
    for _ in range(200):
        states = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"], env={**os.environ, **environment}, capture_output=True, text=True
        )
        if states.stdout.split() == ["idle"]:
            return environment
        time.sleep(0.05)
    raise RuntimeError(f"{states.stdout}{states.stderr}{(folder / 'daemons.log').read_text()}")
