#!/usr/bin/env bash
# Builds for the GPU at hand and runs the tests that need one: gpu_test.sh [PART...]
#
# Parts, each below ten minutes on an H200; without arguments all, in this order:
#   build     the library, its extension module, tests and benchmarks into build/cuda; needs nvcc, CUTLASS (the Python
#             package, or CUTLASS_ROOT), DLPack (apache-tvm-ffi, or DLPACK_ROOT), GoogleTest, nanobind
#   cpp       the C++ tests labelled gpu, and the planner's
#   starts    short calls as the first of a process: launch-blocking mode, lazy loading
#   python    the Python tests marked gpu, on the package as built
#   nvshmem   ranks in processes over NVSHMEM, on one GPU under MPS (skipped where the library is built without it)
#   grid      the correctness grid W = 4 on one GPU: overlapped == serial and tolerances at the sizes of the paper's Table 2
#   sanitize  compute-sanitizer on the small tests: memcheck, racecheck, synccheck
#   sass      the bf16 GEMM has HGMMA and neither LDL nor STL
#   bench     tileoverlap bench: transport, producer, operator (needs torch; more of them by measure.sh)
# Results: build/gpu/*.xml, *.json, *.log.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
out=${TILEOVERLAP_GPU_OUT:-$root/build/gpu}
mkdir -p "$out"
build=${TILEOVERLAP_GPU_BUILD:-$root/build/cuda}
gpu_test=$build/cpp_tests/gpu_test
python=${PYTHON:-python3}

say() { printf '== %s\n' "$*"; }

part_build() {
  cmake --preset cuda -B "$build" -DTILEOVERLAP_BUILD_PYTHON=ON -DTILEOVERLAP_BUILD_BENCH=ON -DTILEOVERLAP_WERROR=OFF \
    -DTILEOVERLAP_NVSHMEM=AUTO \
    -DPython_EXECUTABLE="$(command -v "$python")" >"$out/configure.log" 2>&1 || { tail -n 30 "$out/configure.log"; return 1; }
  local -a targets=(tileoverlap gpu_test gpu_grid _core)
  ! grep -q '^build nvshmem_program:' "$build/build.ninja" || targets+=(nvshmem_program)
  cmake --build "$build" --target "${targets[@]}" >"$out/build.log" 2>&1 ||
    { grep -m 5 -E 'error|FAILED' "$out/build.log"; tail -n 30 "$out/build.log"; return 1; }
}
part_cpp() { "$gpu_test" --gtest_output="xml:$out/gpu_test.xml" --gtest_brief=1; }
part_starts() {
  local -a soak=("$gpu_test" --gtest_filter='*GpuSoak.*' --gtest_brief=1)
  TILEOVERLAP_GPU_SOAK_CALLS=500 CUDA_MODULE_LOADING=LAZY "${soak[@]}" &&
    TILEOVERLAP_GPU_SOAK_CALLS=500 TILEOVERLAP_GPU_SOAK_THREADS=1 CUDA_LAUNCH_BLOCKING=1 "${soak[@]}"
}
# The package as built: its Python files and its extension module.
package() {
  rm -rf "$out/site" && mkdir -p "$out/site" && cp -r python/tileoverlap "$out/site/" &&
    cp "$build"/python/bindings/_core*.so "$out/site/tileoverlap/"
}
# gpu_pytest NAME ARGUMENTS...
gpu_pytest() {
  local name=$1
  shift
  package && PYTHONPATH=$out/site "$python" -m pytest -q -m gpu -p no:cacheprovider --junitxml="$out/$name.xml" "$@"
}
part_python() { gpu_pytest pytest_gpu --ignore=py_tests/test_gpu_nvshmem.py py_tests; }
part_nvshmem() {
  [[ ! -x $build/cpp_tests/nvshmem_program ]] || export TILEOVERLAP_NVSHMEM_PROGRAM=$build/cpp_tests/nvshmem_program
  gpu_pytest pytest_nvshmem py_tests/test_gpu_nvshmem.py
}
part_grid() { "$build/tools/bench/gpu_grid" --json "$out/grid.json"; }
part_sanitize() {
  local tool
  for tool in memcheck racecheck synccheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 9 --log-file "$out/$tool.log" "$gpu_test" \
      --gtest_filter='*GpuSmall.*' --gtest_brief=1 || { tail -n 30 "$out/$tool.log"; return 1; }
    tail -n 1 "$out/$tool.log"
  done
}
part_sass() {
  cuobjdump -sass "$build"/src/CMakeFiles/tileoverlap_kernels_sm90.dir/produce/instances/sm90_bf16_128x256.cu.o >"$out/sass.txt"
  printf 'HGMMA %d, LDL %d, STL %d\n' "$(grep -c HGMMA "$out/sass.txt")" "$(grep -cw LDL "$out/sass.txt" || true)" \
    "$(grep -cw STL "$out/sass.txt" || true)"
  grep -q HGMMA "$out/sass.txt" && ! grep -qwE 'LDL|STL' "$out/sass.txt"
}
part_bench() { package && PYTHONPATH=$out/site PYTHON=$python TILEOVERLAP_GPU_OUT=$out tools/measure.sh transport producer operator; }

failed=0
for part in "${@:-build}" $( (($#)) || echo cpp starts python nvshmem grid sanitize sass bench); do
  say "$part"
  begin=$SECONDS
  if "part_$part"; then say "$part: ok after $((SECONDS - begin)) s"; else
    say "$part: FAILED after $((SECONDS - begin)) s"
    failed=1
  fi
done
exit "$failed"
