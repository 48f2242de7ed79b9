#!/usr/bin/env bash
# Several ranks on one GPU, at the same time: mps_ranks.sh -n RANKS [OPTIONS OF tileoverlap launch] COMMAND...
#
# Starts CUDA's Multi-Process Service (MPS) for this run alone, gives each of RANKS processes its share of the SMs, runs
# COMMAND under `tileoverlap launch`, and stops the service again. Without MPS the processes take turns on the GPU, and a
# rank that waits for another holds it for its turn.
set -euo pipefail

usage() {
  sed -n '2,6s/^# \{0,1\}//p' "$0"
  exit 2
}
[[ ${1:-} == -n && ${2:-} =~ ^[1-9][0-9]*$ && $# -ge 3 ]] || usage
ranks=$2
shift 2
command -v nvidia-cuda-mps-control >/dev/null || { echo "mps_ranks: nvidia-cuda-mps-control is not on the PATH" >&2; exit 2; }

# Pipes of our own, so that a service that is there already is left alone.
folder=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$folder/pipe CUDA_MPS_LOG_DIRECTORY=$folder/log
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
stop() {
  echo quit -t 5 | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1 || true
  rm -rf "$folder"
}
trap stop EXIT
nvidia-cuda-mps-control -d

# Rounded down: shares that together pass the whole GPU would let one rank take another's SMs.
export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((100 / ranks))
# The service has some hundred hardware queues for all its processes together.
queues=$((64 / ranks))
((queues >= 8)) || queues=8
((queues <= 32)) || queues=32
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-$queues}
# NVLink's multicast is of no use to ranks of one GPU.
export NVSHMEM_DISABLE_NVLS=${NVSHMEM_DISABLE_NVLS:-1}
"${PYTHON:-python3}" -m tileoverlap launch -n "$ranks" "$@"
