#!/usr/bin/env bash
# Starts and ends a Ray cluster on a plain list of machines.
#
#   tools/clusters/machines.sh start FILE     the first machine is the head; prints the address
#   tools/clusters/machines.sh status FILE
#   tools/clusters/machines.sh stop FILE      ends every Ray of yours on these machines
#
# FILE has a machine a line: HOST [CPUS [GPUS]]; what is left out, Ray counts. "#" begins a comment. Each machine is
# reached by ssh without a password, and has the same robotrl, Python and Ray. ROBOTRL_ENV is the path of their virtual
# environment, if robotrl is not on the path there; SSH is the command that reaches a machine, RAY_PORT the head's port.
set -euo pipefail

if (($# != 2)) || [[ ! $1 =~ ^(start|stop|status)$ ]]; then
    echo "usage: machines.sh start|stop|status FILE" >&2
    exit 2
fi
what=$1
file=$2
if [[ ! -r $file ]]; then
    echo "error: $file cannot be read: expected a list of machines" >&2
    exit 2
fi
port=${RAY_PORT:-6379}
read -ra ssh <<<"${SSH:-ssh -o BatchMode=yes}"

hosts=() cpus=() gpus=()
while read -r host cores cards _; do
    [[ -z $host || $host == \#* ]] && continue
    hosts+=("$host") cpus+=("${cores:-}") gpus+=("${cards:-}")
done <"$file"
if ((${#hosts[@]} == 0)); then
    echo "error: $file names no machine: expected HOST [CPUS [GPUS]] a line" >&2
    exit 2
fi

# runs a command on a machine, in the environment that has robotrl
on() {
    local host=$1 prefix=""
    shift
    [[ -n ${ROBOTRL_ENV:-} ]] && prefix="PATH=$(printf '%q' "$ROBOTRL_ENV/bin"):\$PATH "
    "${ssh[@]}" "$host" "$prefix RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 $*"
}

options() {
    local number=$1 found=""
    [[ -n ${cpus[number]} ]] && found+=" --num-cpus ${cpus[number]}"
    [[ -n ${gpus[number]} ]] && found+=" --num-gpus ${gpus[number]}"
    echo "$found"
}

head=${hosts[0]}
case $what in
start)
    token=$(on "$head" ray get-auth-token --generate | tail -n 1)
    for host in "${hosts[@]:1}"; do
        # by standard input, so that no list of processes shows it
        "${ssh[@]}" "$host" 'umask 077; mkdir -p ~/.ray; cat >~/.ray/auth_token' <<<"$token"
    done
    on "$head" "ray start --head --port $port --include-dashboard false$(options 0)"
    for ((number = 1; number < ${#hosts[@]}; number++)); do
        on "${hosts[number]}" "ray start --address $head:$port$(options "$number")"
    done
    echo "on $head: robotrl train ... --cluster ray --cluster.address auto"
    ;;
status)
    on "$head" "ray status --address $head:$port"
    ;;
stop)
    failed=0
    for host in "${hosts[@]}"; do
        on "$host" ray stop || failed=1
    done
    exit "$failed"
    ;;
esac
