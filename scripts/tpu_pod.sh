#!/usr/bin/env bash
# Trains on a slice of Cloud TPU; see `bash scripts/tpu_pod.sh --help`.
set -euo pipefail

usage() {
  cat <<'HELP'
Trains on all workers of a slice of Cloud TPU, until the run is done.

  bash scripts/tpu_pod.sh --name=vit --zone=us-central2-b --type=v4-32 --spot \
      --setup='mountpoint -q /mnt || sudo mount -t nfs HOST:/SHARE /mnt' -- \
      --config=configs/x.py --workdir=/mnt/runs/x

What follows the lone -- are the flags of `python -m vit_jax.main`. The slice is
asked for as a queued resource if it is not there; this checkout, as git knows
it, is copied to its workers and installed there with the extras [tpu,hub]. A
slice that was preempted is asked for again, and the run resumes; this goes on
until WORKDIR/DONE is there. Run the same command again if this one was interrupted:
what still trains is asked to save and stop first. The slice is kept at the end,
unless --delete says otherwise.

  --name=NAME       of the slice
  --zone=ZONE       where it is
  --type=TYPE       its accelerator type: v4-32, v5litepod-16, v5p-32, v6e-16
  --project=NAME    default: the one of gcloud
  --runtime=NAME    default: Google's choice for that type
  --spot            cheaper; it may be preempted at any time
  --setup=COMMAND   runs on each worker first: to mount what all share, such as
                    NFS or a bucket (gcsfuse), since WORKDIR must be seen by all
  --delete          delete the slice and its request when the run is done
  --retries=N       how often a run that fails may be started again without any
                    preemption in between, and a request that Google refuses be
                    made again; default 3
  --poll=SECONDS    how often to look whether the slice is ready; default 30
HELP
}

fail() {
  echo "error: $*" >&2
  exit 1
}

say() {
  echo "$(date +%H:%M:%S) $*" >&2
}

name='' zone='' type='' project='' runtime='' setup='' spot='' workdir=''
delete=''
retries=3
poll=30

parse_flags() {
  while (($#)); do
    case $1 in
      --help | -h)
        usage
        exit 0
        ;;
      --name=*) name=${1#*=} ;;
      --zone=*) zone=${1#*=} ;;
      --type=*) type=${1#*=} ;;
      --project=*) project=${1#*=} ;;
      --runtime=*) runtime=${1#*=} ;;
      --setup=*) setup=${1#*=} ;;
      --retries=*) retries=${1#*=} ;;
      --poll=*) poll=${1#*=} ;;
      --spot) spot=--spot ;;
      --delete) delete=yes ;;
      --)
        shift
        training=("$@")
        return
        ;;
      *) fail "$1: there is no such flag (--help lists them); those of the" \
        "training go after a lone --" ;;
    esac
    shift
  done
}

check_flags() {
  local flag value
  for flag in name zone type; do
    [[ -n ${!flag} ]] || fail "--$flag is missing; --help has an example"
  done
  for flag in retries poll; do
    value=${!flag}
    [[ $value =~ ^[0-9]+$ ]] || fail "--$flag=$value: write a whole number"
  done
  for flag in "${training[@]}"; do
    case $flag in --workdir=*) workdir=${flag#*=} ;; esac
  done
  [[ $workdir == /* ]] || fail "after the lone --, give --workdir=/PATH: an" \
    "absolute path that all workers share"
  command -v gcloud >/dev/null || fail "gcloud is not here: install the" \
    "Google Cloud CLI and run gcloud auth login"
  runtime=${runtime:-$(default_runtime)}
}

default_runtime() {
  case $type in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}

# Runs `gcloud compute tpus KIND VERB ...` on the slice.
tpu() {
  local kind=$1 verb=$2
  shift 2
  gcloud compute tpus "$kind" "$verb" "$@" --zone="$zone" --quiet \
    ${project:+--project="$project"} </dev/null
}

# Prints the line of gcloud's output that says what is wrong.
problem() {
  grep -m 1 '^ERROR' "$1" || tail -n 1 "$1"
}

# Prints fields of a tpu-vm or queued-resource; nothing if there is none.
state() {
  local kind=$1 fields=$2 said="$scratch/describe" tries=0
  until tpu "$kind" describe "$name" --format="value($fields)" 2>"$said"; do
    if grep -qi 'not.found' "$said"; then
      return
    fi
    tries=$((tries + 1))
    ((tries < 5)) || fail "gcloud cannot describe $name: $(problem "$said")"
    sleep "$poll"
  done
}

# Changes the slice or its request. If that fails, the next look at their states
# decides again.
change() {
  local said="$scratch/change"
  tpu "$@" 2>"$said" || refused "gcloud cannot $2 $name: $(problem "$said")"
}

# Counts a refusal of Google since the last slice; too many end the script.
refused() {
  refusals=$((refusals + 1))
  ((refusals <= retries)) || fail "$1"
  say "$1; retry $refusals of $retries"
}

on_workers() {
  local workers=$1 command=$2
  tpu tpu-vm ssh "$name" --worker="$workers" --command="$command"
}

# Requests the slice if there is none, and waits until it is ready.
get_slice() {
  local node answer queued reason last='' lost=0
  refusals=0
  while true; do
    node=$(state tpu-vm state)
    if [[ $node == READY ]]; then
      return
    fi
    answer=$(state queued-resources state.state,state.failedData.error.message)
    IFS=$'\t' read -r queued reason <<<"$answer"
    if [[ $node/$queued != "$last" ]]; then
      say "$name: ${node:-no slice}, ${queued:-no request}"
      last=$node/$queued lost=0
    fi
    case $queued/$node in
      /) request ;;
      FAILED/*)
        refused "Google refused the request: ${reason:-it does not say why}"
        change queued-resources delete "$name" --force
        ;;
      SUSPENDED/*) change queued-resources delete "$name" --force ;;
      */STOPPED) change tpu-vm start "$name" ;;
      /PREEMPTED | /TERMINATED) change tpu-vm delete "$name" ;;
      ACTIVE/ | ACTIVE/PREEMPTED | ACTIVE/TERMINATED)
        # The request is about to be suspended; or somebody deleted the slice.
        lost=$((lost + 1))
        if ((lost >= 10)); then
          change queued-resources delete "$name" --force
        fi
        ;;
    esac
    sleep "$poll"
  done
}

request() {
  say "asking for $type"
  change queued-resources create "$name" --node-id="$name" \
    --accelerator-type="$type" --runtime-version="$runtime" \
    ${spot:+"$spot"}
}

# Deletes the slice and its request.
delete_slice() {
  local kind=tpu-vm force=''
  if [[ -n $(state queued-resources state.state) ]]; then
    kind=queued-resources force=--force
  fi
  tpu "$kind" delete "$name" ${force:+"$force"} 2>"$scratch/change" ||
    fail "the run is done, but gcloud cannot delete $name, which is charged" \
      "for: $(problem "$scratch/change")"
  say "done: $workdir. The slice is deleted"
}

# Installs the code on all workers. Before that, a run that is still active is
# asked to save and stop, and killed if it does not. Google's runtimes have an
# older Python than we need.
install() {
  say 'installing'
  tpu tpu-vm scp "$scratch/vit_jax.tgz" "$name:" --worker=all &&
    on_workers all "set -e
      old=\$(cat vit_jax.pid 2>/dev/null || true)
      if grep -qs vit_jax.main \"/proc/\$old/cmdline\"; then
        kill -TERM \"\$old\"
        timeout 300 tail --pid=\"\$old\" -f /dev/null || kill -KILL \"\$old\"
      fi
      $setup
      rm -rf vit_jax && mkdir vit_jax && tar -xzf vit_jax.tgz -C vit_jax
      python3 -m pip install -q --user uv
      [ -e venv ] || python3 -m uv venv -q --python 3.12 venv
      python3 -m uv pip install -q --python venv/bin/python -e './vit_jax[tpu,hub]'"
}

train() {
  local flags
  say 'training'
  printf -v flags ' %q' "${training[@]}"
  on_workers all "echo \$\$ > vit_jax.pid
    cd vit_jax && exec ../venv/bin/python -m vit_jax.main$flags"
}

# Lists the files of the code: those in git, or without git the needed ones.
files() {
  cd "$root"
  git ls-files -z --cached --others --exclude-standard 2>/dev/null ||
    find setup.py README.md vit_jax configs -type f ! -name '*.pyc' -print0
}

# Prints `yes` if the run is done.
is_done() {
  on_workers 0 "[ -e $(printf %q "$workdir/DONE") ] && echo yes" | tail -n 1
}

main() {
  local failures=0 now
  training=()
  parse_flags "$@"
  check_flags
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  # Only once, so that a run is resumed with the code that it began with.
  files | tar -C "$root" --null --files-from=- -czf "$scratch/vit_jax.tgz"
  while true; do
    get_slice
    if install && train; then
      if [[ $(is_done) == yes ]]; then
        if [[ -n $delete ]]; then
          delete_slice
          return
        fi
        say "done: $workdir. The slice is kept, and charged for, until" \
          "gcloud compute tpus queued-resources delete $name --force" \
          "--zone=$zone"
        return
      fi
    fi
    sleep "$poll" # a preemption does not show at once
    now=$(state tpu-vm state)
    if [[ $now == READY ]]; then
      failures=$((failures + 1))
      if ((failures > retries)); then
        fail "the run failed $failures times on a slice that is there; what" \
          "it said is above, and in $workdir/train.log"
      fi
      say "it ended before it was done: retry $failures of $retries"
    else
      failures=0
      say 'the slice was preempted'
    fi
  done
}

main "$@"
