#!/usr/bin/env bash
# Trains on a Slurm allocation: a Ray head on its first node, Ray on the others, and the command beside the head.
#
#   sbatch --nodes 4 tools/clusters/slurm.sh RUN_DIR --sim mujoco/ant --algo ppo --cluster ray --cluster.workers 60
#
# The arguments after RUN_DIR are those of `robotrl train`; --run-dir and --cluster.address are added here. Before the
# time is up the run is saved and the job is queued again, and then the run goes on. RUN_DIR and the environment that has
# robotrl are on a file system that all nodes share; ROBOTRL_ENV is the path of a virtual environment, if it is not active.
#SBATCH --job-name=robotrl
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

if (($# < 1)); then
    echo "usage: sbatch slurm.sh RUN_DIR [arguments of robotrl train]" >&2
    exit 2
fi
run_dir=$1
shift
if [[ -n ${ROBOTRL_ENV:-} ]]; then
    # shellcheck disable=SC1091
    source "$ROBOTRL_ENV/bin/activate"
fi

port=${RAY_PORT:-6379}
cpus=${SLURM_CPUS_PER_TASK:-1}
# who connects needs the token, which lies in the home folder
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
ray get-auth-token --generate >/dev/null

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$head:$port
# on a disk of each node: a shared one is too slow for Ray's sockets
scratch=${SLURM_TMPDIR:-${TMPDIR:-/var/tmp}}/ray-$SLURM_JOB_ID

srun --nodes 1 --ntasks 1 --nodelist "$head" --overlap \
    ray start --head --port "$port" --num-cpus "$cpus" --temp-dir "$scratch" --include-dashboard false --block &
if ((SLURM_JOB_NUM_NODES > 1)); then
    srun --nodes $((SLURM_JOB_NUM_NODES - 1)) --ntasks $((SLURM_JOB_NUM_NODES - 1)) --exclude "$head" --overlap \
        ray start --address "$address" --num-cpus "$cpus" --block &
fi

joined() {
    RAY_ADDRESS=$address python -c \
        'import ray; ray.init(log_to_driver=False); print(sum(node["Alive"] for node in ray.nodes()))' 2>/dev/null
}
for ((wait = 0; wait < 60; wait++)); do
    [[ $(joined || echo 0) == "$SLURM_JOB_NUM_NODES" ]] && break
    sleep 5
done

if [[ -e $run_dir/config.json ]]; then
    arguments=(--resume "$run_dir")
else
    # the next allocation has another head
    arguments=("$@" --cluster.address auto --run-dir "$run_dir")
fi
RAY_ADDRESS=$address srun --nodes 1 --ntasks 1 --nodelist "$head" --overlap robotrl train "${arguments[@]}" &
train=$!
trap 'kill -TERM "$train"' TERM
code=0
wait "$train" || code=$?
# a signal ends the first wait, and the run saves during the second
while kill -0 "$train" 2>/dev/null; do
    code=0
    wait "$train" || code=$?
done
trap - TERM
if ((code == 143)); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
