#!/usr/bin/env bash
# Measures what results/ holds, on the GPU at hand, with the package that Python finds: measure.sh NAME...; of all names
# without one it prints the list. A sweep takes about 40 s, tune and partition minutes. Afterwards, in a checkout with
# its history, measure.sh --save FOLDER COMMIT puts what FOLDER holds into results/, each with its command.
#
# Writes to build/gpu, or TILEOVERLAP_GPU_OUT: NAME.json, and gpu.txt (the GPU's name and driver). TILEOVERLAP_TRACE: an
# npz of real routing, for operator_trace (its layer 13).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=${TILEOVERLAP_GPU_OUT:-$root/build/gpu}
trace=${TILEOVERLAP_TRACE:-esft_routing.npz}

operator_shapes='M=16384,N=8192;M=32768,N=8192,E=16;M=16384,N=4096,E=64;M=16384,N=4096,E=16'
partition_shapes='M=16384,N=8192,E=16;M=16384,N=8192,E=32;M=16384,N=8192,E=64;M=16384,N=4096,E=64'
skew=balanced,moderate_skew,stress_skew
names=(operator producer operator_again partition operator_trace producer_served experts tune transport correctness layer
  operator_pcie)
declare -A arguments=(
  [operator]="operator --comm-sms 8 --modes $skew --repetitions 40 --shapes $operator_shapes"
  [operator_again]="operator --comm-sms 8 --modes $skew --repetitions 40 --shapes $operator_shapes"
  [operator_trace]="operator --comm-sms 8 --modes $trace:13 --repetitions 20 --shapes M=16384,E=16"
  [operator_pcie]="operator --link pcie --repetitions 10 --shapes M=16384,N=8192,E=16"
  [producer]="producer --repetitions 20"
  [producer_served]="producer --shapes served --repetitions 15"
  [partition]="partition --comm-sms 6,7,8,9,10,12 --repetitions 30 --shapes $partition_shapes"
  [experts]="experts --comm-sms 8"
  [tune]="tune --shapes sweep;served --repetitions 8"
  [transport]="transport --repetitions 10"
  [correctness]="correctness --modes balanced,stress_skew --shapes M=16384,N=8192,E=16;M=16384,N=4096,E=64"
  [layer]="layer --repetitions 10 --shapes M=16384,N=8192,E=16"
)

die() {
  printf 'measure.sh: %s\n' "$*" >&2
  exit 2
}

save() {
  local folder=$1 commit=$2 name device driver shown
  IFS=, read -r device driver <"$folder/gpu.txt" || die "$folder/gpu.txt is missing: which GPU was it?"
  for name in "${names[@]}"; do
    [[ -s $folder/$name.json ]] || continue
    shown=${arguments[$name]//$trace/$(basename "$trace")}
    python3 "$root/tools/save_result.py" "$name" "$folder/$name.json" --commit "$commit" --device "$device" \
      --driver "${driver# }" --command "tileoverlap bench $shown"
  done
}

if [[ ${1:-} == --save ]]; then
  (($# == 3)) || die "--save needs a folder and a commit"
  save "$2" "$3"
  exit
fi
(($#)) || { printf '%s\n' "${names[@]}"; exit; }
for name; do [[ -v arguments[$name] ]] || die "nothing is called '$name': ${names[*]}"; done
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1 >"$out/gpu.txt"
failed=0
for name; do
  begin=$SECONDS
  read -ra words <<<"${arguments[$name]}"
  if "${PYTHON:-python3}" -m tileoverlap bench "${words[@]}" --json "$out/$name.json" >"$out/$name.txt" 2>&1; then
    printf '%s: %d s\n' "$name" $((SECONDS - begin))
  else
    tail -n 3 "$out/$name.txt"
    printf '%s: FAILED after %d s\n' "$name" $((SECONDS - begin))
    failed=1
  fi
done
exit "$failed"
