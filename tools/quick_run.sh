#!/usr/bin/env bash
# Builds tileoverlap, installs it into .venv in this checkout and runs one layer: quick_run.sh [ARGUMENTS of `tileoverlap run`]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

make_venv
install_package plot
exec "$venv/bin/tileoverlap" run "$@"
