#!/usr/bin/env bash
# usage: tests/sanitize/thread.sh [PYTEST ARGUMENTS]
# Builds the core with ThreadSanitizer and runs the tests that use threads on it, by default those of the thread pool and
# of predicting, saving and fitting at once. Needs g++ with libtsan, cmake, ninja and an environment with the tests'
# packages. Python itself and numpy are not instrumented: reports about the core only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${TSAN_BUILD:-$(mktemp -d)}
cmake -S . -B "$build" -G Ninja -DXMC_SANITIZE=thread -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >/dev/null
nice cmake --build "$build" >/dev/null
cp -r python "$build/package"
cp "$build"/_core*.so "$build/package/xmc_fast/"
[ $# -gt 0 ] || set -- tests/test_core.py tests/test_faults.py -k 'parallel_for or eight_threads or forked'
PYTHONPATH="$build/package" LD_PRELOAD="$("${CXX:-c++}" -print-file-name=libtsan.so)" \
  TSAN_OPTIONS="exitcode=66 report_signal_unsafe=0 ignore_noninstrumented_modules=1" OMP_NUM_THREADS=4 \
  python -m pytest -q -p no:cacheprovider "$@"
