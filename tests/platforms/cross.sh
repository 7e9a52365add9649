#!/usr/bin/env bash
# usage: tests/platforms/cross.sh macos-arm64|macos-x86_64|windows-x86_64|windows-arm64 FOLDER
# Compiles and links the core for another system with the clang of the PyPI package ziglang; warnings are errors. The
# Python headers are those of this Python. Windows needs a library of what python3xx.dll exports: it is made of what
# this Python exports. For windows-x86_64 the C++ test of threads is built too, and run under wine where wine is.
# With -O1: it is about what compiles. FOLDER is kept: a second run only builds what has changed. Needs pybind11, cmake and
# ninja in the environment.
set -euo pipefail
target=${1:?macos-arm64, macos-x86_64, windows-x86_64 or windows-arm64}
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "${2:?the folder to build in}"
folder=$(cd "$2" && pwd)
case $target in
macos-arm64) triple=aarch64-macos.11.0 system=Darwin cpu=arm64 suffix=.so ;;
macos-x86_64) triple=x86_64-macos.11.0 system=Darwin cpu=x86_64 suffix=.so ;;
windows-x86_64) triple=x86_64-windows-gnu system=Windows cpu=AMD64 suffix=.pyd ;;
windows-arm64) triple=aarch64-windows-gnu system=Windows cpu=ARM64 suffix=.pyd ;;
*) echo "unknown target $target" >&2 && exit 2 ;;
esac
python -c "import ziglang" 2>/dev/null || pip install -q ziglang -c "$root/constraints.txt"
export ZIG_GLOBAL_CACHE_DIR=${ZIG_GLOBAL_CACHE_DIR:-$folder/zig}

# One file a tool, as CMake wants it.
tool() {
  printf '#!/bin/sh\nexec "%s" -m ziglang %s "$@"\n' "$(command -v python)" "$2" >"$folder/$1"
  chmod +x "$folder/$1"
}
tool c++ "c++ -target $triple"
tool ar ar
tool ranlib ranlib

rm -rf "$folder/include"
cp -rL "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')" "$folder/include"
options=()
if [ $system = Windows ]; then
  cp "$root/tests/platforms/pyconfig_windows.h" "$folder/include/pyconfig.h"
  name=$(python -c 'import sys; print("python%d%d" % sys.version_info[:2])')
  {
    printf 'LIBRARY %s.dll\nEXPORTS\n' "$name"
    python - <<'END'
import subprocess, sys, sysconfig
from pathlib import Path

shared = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY"))
binary = shared if shared.suffix != ".a" and shared.exists() else sys.executable
names = subprocess.run(["nm", "-D", "--defined-only", binary], capture_output=True, text=True, check=True).stdout
print(*sorted({n for n in (line.split()[-1] for line in names.splitlines()) if n.startswith(("Py", "_Py"))}), sep="\n")
END
  } >"$folder/$name.def"
  machine=i386:x86-64
  [ $cpu = ARM64 ] && machine=arm64
  python -m ziglang dlltool -m $machine -d "$folder/$name.def" -l "$folder/$name.lib"
  options+=(-DPython_LIBRARY="$folder/$name.lib")
fi
cat >"$folder/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME $system)
set(CMAKE_SYSTEM_PROCESSOR $cpu)
set(CMAKE_CXX_COMPILER $folder/c++)
set(CMAKE_AR $folder/ar)
set(CMAKE_RANLIB $folder/ranlib)
set(CMAKE_OSX_SYSROOT "")
set(CMAKE_OSX_DEPLOYMENT_TARGET "")
set(CMAKE_INSTALL_NAME_TOOL true)
END
cmake -S "$root" -B "$folder/build" -G Ninja -DXMC_WERROR=ON -DXMC_CUDA=OFF -DXMC_OPTIMIZE="${XMC_OPTIMIZE:--O1}" -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" \
  -DPython_EXECUTABLE="$(command -v python)" -DPython_INCLUDE_DIR="$folder/include" \
  -DPYTHON_MODULE_EXTENSION="$suffix" ${options[@]+"${options[@]}"} >"$folder/configure.log"
cmake --build "$folder/build"
ls -l "$folder/build/_core$suffix"
if [ $target = windows-x86_64 ]; then
  "$folder/c++" -std=c++20 -O1 -Wall -Wextra -Werror -DXMC_SIMD_NS=baseline -DXMC_SIMD_IS_baseline -I "$root/csrc" \
    "$root/tests/sanitize/threads.cpp" "$root"/csrc/predict/*.cpp "$root"/csrc/core/{parallel,numa,simd,buffer_pool}.cpp \
    -o "$folder/threads.exe"
  if command -v wine >/dev/null; then
    WINEPREFIX=$folder/wine WINEDEBUG=-all timeout 300 wine "$folder/threads.exe"
    echo "the test of threads passed under $(wine --version)"
  else
    echo "there is no wine: threads.exe was not run"
  fi
fi
