#!/usr/bin/env bash
# Checks the SLURM launcher on a real SLURM of two nodes, which this machine
# plays, in under six minutes:
#
#   apt-get install slurm-wlm munge && pip install -e '.[test,slurm]'
#   bash scripts/slurm_test.sh
#
# It needs root. Its processes, its mounts and its /etc/hosts are its own: nothing
# of it is left. Flags are pytest's: `bash scripts/slurm_test.sh -k preempted`.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
  echo "skipped: $1"
  exit 0
}

if [[ ${1-} != --inside ]]; then
  [[ $EUID -eq 0 ]] || skip 'scripts/slurm_test.sh needs root'
  for program in munged slurmctld slurmd sbatch; do
    [[ -n $(PATH=$PATH:/usr/sbin type -P "$program") ]] ||
      skip "$program is missing: apt-get install slurm-wlm munge"
  done
  python -c 'import submitit' 2>/dev/null ||
    skip "submitit is missing: pip install -e '.[slurm]'"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  # As the first process of its namespace ends, all daemons and jobs do.
  unshare --mount --pid --fork --mount-proc --kill-child \
    bash "$0" --inside "$scratch" "$@"
  exit
fi

scratch=$2
shift 2
export PATH=$PATH:/usr/sbin SLURM_CONF=$scratch/slurm.conf
host=$(hostname)
mkdir "$scratch/state" "$scratch/munge"

# Nodes find each other by their names.
{ cat /etc/hosts && echo '127.0.0.1 n1 n2'; } >"$scratch/hosts"
mount --bind "$scratch/hosts" /etc/hosts

# A key and a socket of its own, whether or not the machine has a munge.
head -c 1024 /dev/urandom >"$scratch/munge/key"
chmod 711 "$scratch"
chmod 400 "$scratch/munge/key"
chmod 755 "$scratch/munge"
chown -R munge "$scratch/munge"
setpriv --reuid=munge --regid=munge --clear-groups munged \
  --key-file="$scratch/munge/key" --socket="$scratch/munge/socket" \
  --pid-file="$scratch/munge/pid" --log-file="$scratch/munge/log" \
  --seed-file="$scratch/munge/seed"

# Short intervals, so that a lost node and a requeue take seconds.
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=17000
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$scratch/munge/socket
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/%n
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/%n.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MpiDefault=none
KillWait=30
MinJobAge=300
SlurmdTimeout=5
InactiveLimit=0
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=17001 CPUs=4
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=17002 CPUs=4
PartitionName=batch Nodes=n1,n2 Default=YES State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=urgent Nodes=n1,n2 State=UP PriorityTier=2 PreemptMode=OFF
CONF
slurmctld
slurmd -N n1
slurmd -N n2
for _ in $(seq 60); do
  if [[ $(sinfo --noheader --format=%T --partition=batch) == idle ]]; then
    break
  fi
  sleep 0.5
done
sinfo
python -m pytest --numprocesses=0 tests/scripts/on_slurm.py "$@"
