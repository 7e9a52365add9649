#!/usr/bin/env bash
# usage: tests/platforms/free_threaded.sh FOLDER [pytest arguments]
# The core's tests on a CPython without the global lock (3.13t or 3.14t): found on the PATH, by uv, named by PYTHON, or
# compiled from Debian's source package (about ten minutes of CPU time). FOLDER is kept.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "${1:?the folder to build in}"
folder=$(cd "$1" && pwd)
shift
python=${PYTHON:-$(command -v python3.14t || command -v python3.13t ||
  uv python find -q --no-python-downloads 3.14t 2>/dev/null || ls "$folder"/python/bin/python3.*t 2>/dev/null || true)}
if [ -z "$python" ]; then
  pool=http://deb.debian.org/debian/pool/main/p/python3.14
  for minor in $(seq 30 -1 0); do
    curl -fsL "$pool/python3.14_3.14.$minor.orig.tar.xz" -o "$folder/python.tar.xz" && break
  done
  mkdir -p "$folder/source" "$folder/objects"
  tar -xf "$folder/python.tar.xz" -C "$folder/source" --strip-components=1
  (cd "$folder/objects" && "$folder/source/configure" -q --disable-gil --prefix="$folder/python" CFLAGS=-O2 &&
    make -s -j"$(nproc)" && make -s install) >"$folder/python.log" 2>&1
  python=$folder/python/bin/python3.14t
fi
[ -d "$folder/venv" ] || "$python" -m venv "$folder/venv"
. "$folder/venv/bin/activate"
pip install -q "$root" pytest hypothesis psutil narwhals
cd "$folder"
python -VV
python -c "import xmc_fast, numpy, scipy, sklearn, sys; assert not sys._is_gil_enabled(); print('the global lock is off')"
python "$root/tests/platforms/core_tests.py" "$@"
