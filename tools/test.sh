#!/usr/bin/env bash
# Builds and runs the C++ tests (GoogleTest) and the Python tests (pytest, on the package as installed into .venv).
#
# Results as JUnit files: build/ctest-cpu.xml, build/pytest.xml.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$root"
rm -f build/ctest-cpu.xml build/pytest.xml

make_venv
need_test_libraries

failed=0
# One half of the tests says something even where the other half does not compile.
if quietly configure-cpu cmake --preset cpu -DPython_EXECUTABLE="$venv/bin/python" &&
  quietly build-cpu cmake --build --preset cpu; then
  ctest --preset cpu --output-junit "$root/build/ctest-cpu.xml" || failed=1
else
  failed=1
fi

(install_package test) || exit 1
"$venv/bin/python" -m pytest --junitxml=build/pytest.xml || failed=1
exit "$failed"
