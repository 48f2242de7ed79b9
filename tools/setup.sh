# Prepares a machine and this checkout for quick_run.sh, test.sh and .ci/run, which source it. What is there already is
# left alone, so that a second run costs a second. Python packages go into .venv and nowhere else; system packages are
# installed only by root where apt is.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
logs=$root/build/logs
mkdir -p "$logs"
PATH=$venv/bin:$PATH  # cmake and ninja may come from there
# With paths relative to the checkout, a fresh clone finds in ccache what another checkout compiled.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_ABSSTDERR=1

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# quietly NAME COMMAND...: the output goes to build/logs/NAME.log; of a failure the end of it is shown.
quietly() {
  local log=$logs/$1.log status=0
  shift
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if ((status)); then
    tail -n 40 "$log" >&2
    printf '%s: exit status %d from: %s\n  the whole log: %s\n' "${0##*/}" "$status" "$*" "$log" >&2
  fi
  return "$status"
}

# apt_install PACKAGES...: fails, without a word, where that is not ours to do.
apt_install() {
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
  quietly apt-update apt-get update &&
    quietly apt-install env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# Debian keeps two parts of Python in packages of their own; prints those that $1 lacks.
python_packages_missing() {
  "$1" -c 'import ensurepip, venv' 2>/dev/null || printf 'python3-venv '
  "$1" -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null || printf 'python3-dev '
}

# Creates .venv from $PYTHON (default python3), with what building the package needs in it.
make_venv() {
  local python=${PYTHON:-python3} missing
  command -v "${CXX:-c++}" >/dev/null || die "a C++20 compiler is needed (g++ 12 or newer): none found as ${CXX:-c++}"
  command -v "$python" >/dev/null || die "Python 3.10 or newer is needed: no $python found; set PYTHON"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "Python 3.10 or newer is needed, $python is $("$python" --version 2>&1); set PYTHON"
  missing=$(python_packages_missing "$python")
  if [[ -n $missing ]]; then
    # shellcheck disable=SC2086 # a list of names
    apt_install $missing || true
    missing=$(python_packages_missing "$python")
    [[ -z $missing ]] || die "$python lacks what these packages hold: ${missing% }; install them, or set PYTHON"
  fi

  # The path is part of the mark: a virtual environment cannot be moved.
  local mark=$venv/.ready wanted
  wanted="$venv $(sed -n 's/^requires = //p' "$root/pyproject.toml")"
  [[ -x $venv/bin/python && -e $mark && $(<"$mark") == "$wanted" ]] && return
  quietly venv "$python" -m venv --clear "$venv" || die "cannot create $venv"
  # shellcheck disable=SC2046 # a list of names
  quietly pip-build pip_install $("$venv/bin/python" "$root/tools/requirements.py" build) || die "cannot install what the build needs into $venv"
  need_cmake
  printf '%s\n' "$wanted" >"$mark"
}

pip_install() { "$venv/bin/python" -m pip install --disable-pip-version-check "$@"; }

# CMake 3.25 or newer and Ninja: the system's, or else Python's packages of them.
need_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version \([0-9.]*\).*/\1/p') || version=
  if [[ -z $version || $(printf '%s\n' 3.25 "$version" | sort -V | head -n 1) != 3.25 ]]; then
    quietly pip-cmake pip_install cmake || die "CMake 3.25 or newer is needed; found ${version:-none}"
  fi
  if ! command -v ninja >/dev/null; then
    quietly pip-ninja pip_install ninja || die "Ninja is needed"
  fi
}

# install_package EXTRA: this checkout with one of pyproject.toml's extras, unless nothing changed since the last time.
install_package() {
  local mark=$venv/.installed-$1
  if [[ -e $mark ]]; then
    local changed
    changed=$(cd "$root" && find VERSION README.md pyproject.toml CMakeLists.txt include src python tools/cmake \
      -name __pycache__ -prune -o -newer "$mark" -print -quit)
    [[ -n $changed ]] || return 0
  fi
  touch "$mark.begun"
  # Without isolation, and in a folder that stays: what did not change is not compiled again.
  SKBUILD_BUILD_DIR=$root/build/python quietly pip-tileoverlap pip_install --no-build-isolation "${root}[$1]" ||
    die "cannot build and install the package"
  mv "$mark.begun" "$mark"
}

has_header() { printf '#include <%s>\n' "$1" | "${CXX:-c++}" -std=c++20 -E -x c++ - >/dev/null 2>&1; }

# GoogleTest and Google Benchmark. Who has them elsewhere says so with CMAKE_PREFIX_PATH.
need_test_libraries() {
  [[ -z ${CMAKE_PREFIX_PATH:-} ]] || return 0
  local missing=()
  has_header gtest/gtest.h || missing+=(libgtest-dev)
  has_header gmock/gmock.h || missing+=(libgmock-dev)
  has_header benchmark/benchmark.h || missing+=(libbenchmark-dev)
  ((${#missing[@]})) || return 0
  apt_install "${missing[@]}" pkg-config ||
    die "the C++ tests need ${missing[*]} (Debian's names): install them, or point CMAKE_PREFIX_PATH at them"
}
