#!/usr/bin/env bash
# usage: tests/sanitize/thread.sh short
#        tests/sanitize/thread.sh [PYTEST ARGUMENTS]
# The threads of the core under ThreadSanitizer. `short` (under a minute of CPU time) builds threads.cpp with the pool and
# prediction: eight threads that share one model. A race made on purpose must be reported, else the run says nothing.
# Without it the whole core is built and the tests that use threads are run on it, by default those of the pool and of
# predicting, saving, updating and fitting at once. Needs g++ with libtsan, cmake, ninja and an environment with the
# tests' packages, but without an editable install of this one. Python and numpy are not instrumented: reports about the
# core only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${TSAN_BUILD:-$(mktemp -d)}
export TSAN_OPTIONS="exitcode=66 report_signal_unsafe=0 ignore_noninstrumented_modules=1"
if [ "${1:-}" = short ]; then
  "${CXX:-c++}" -std=c++20 -fsanitize=thread -DXMC_SIMD_NS=baseline -DXMC_SIMD_IS_baseline -O1 -g -pthread -I csrc \
    tests/sanitize/threads.cpp csrc/predict/*.cpp csrc/core/{parallel,numa,simd,buffer_pool}.cpp -o "$build/threads"
  "$build/threads"
  if "$build/threads" race >/dev/null 2>"$build/race"; then
    echo "the race made on purpose was not reported" >&2
    exit 1
  fi
  grep -q "data race" "$build/race" && echo "the race made on purpose was reported"
  exit
fi
cmake -S . -B "$build" -G Ninja -DXMC_SANITIZE=thread -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" ${CMAKE_ARGS:-} >/dev/null
nice cmake --build "$build" >/dev/null
rm -rf "$build/package"
mkdir "$build/package"
cp -r python/xmc_fast "$build/package/"
cp "$build"/_core*.so "$build/package/xmc_fast/"
[ $# -gt 0 ] || set -- tests/test_core.py tests/test_faults.py tests/test_refit.py tests/test_threads.py -k 'parallel_for or eight_threads or test_threads'
PYTHONPATH="$build/package:$PWD" LD_PRELOAD="$("${CXX:-c++}" -print-file-name=libtsan.so)" OMP_NUM_THREADS=4 \
  python -m pytest -q -p no:cacheprovider "$@"
