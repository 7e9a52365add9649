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

# One file a tool, as CMake wants it. The linker of ziglang 0.17 dies of -bundle: what it makes is a shared library,
# which Python on macOS loads as well. Libraries that this machine's Python needs are not there on the others.
tool() {
  cat >"$folder/$1" <<END
#!/bin/sh
for option; do
  shift
  case \$option in
  -bundle) set -- "\$@" -shared ;;
  -ldl | -lutil) ;;
  *) set -- "\$@" "\$option" ;;
  esac
done
exec "$(command -v python)" -m ziglang $2 "\$@"
END
  chmod +x "$folder/$1"
}
tool c++ "c++ -target $triple -fno-sanitize=undefined" # which it checks for where it does not optimize
tool ar ar
tool ranlib ranlib

rm -rf "$folder/include"
cp -rLp "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')" "$folder/include"
options=()
if [ $system = Windows ]; then
  cp -p "$root/tests/platforms/pyconfig_windows.h" "$folder/include/pyconfig.h"
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
if [ $cpu = x86_64 ] || [ $cpu = AMD64 ]; then # what __builtin_cpu_supports reads, which ziglang lacks: no CPU has anything
  echo 'int __cpu_model[4]; unsigned __cpu_features2[4]; int __cpu_indicator_init(void) { return 0; }' >"$folder/cpu.c"
  python -m ziglang cc -target $triple -O1 -c "$folder/cpu.c" -o "$folder/cpu.o"
  options+=(-DCMAKE_MODULE_LINKER_FLAGS="$folder/cpu.o")
fi
cmake -S "$root" -B "$folder/build" -G Ninja -DXMC_WERROR=ON -DXMC_CUDA=OFF -DXMC_OPTIMIZE="${XMC_OPTIMIZE:--O1}" -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" \
  -DPython_EXECUTABLE="$(command -v python)" -DPython_INCLUDE_DIR="$folder/include" \
  -DPYTHON_MODULE_EXTENSION="$suffix" ${options[@]+"${options[@]}"} >"$folder/configure.log"
cmake --build "$folder/build"
ls -l "$folder/build/_core$suffix"
[ $system != Darwin ] || python "$root/tests/platforms/looked_up.py" "$folder/build/_core$suffix"
if [ $target = windows-x86_64 ]; then
  objects=$folder/build/CMakeFiles
  "$folder/c++" -std=c++20 -O1 -Wall -Wextra -Werror -DXMC_X86=1 -I "$root/csrc" "$root/tests/sanitize/threads.cpp" \
    "$objects"/{_core,simd_baseline,simd_avx2,simd_avx512}.dir/csrc/predict/*.obj \
    "$objects"/_core.dir/csrc/core/{parallel,numa,simd,buffer_pool}.cpp.obj "$folder/cpu.o" -o "$folder/threads.exe"
  if command -v wine >/dev/null; then
    WINEPREFIX=$folder/wine WINEDEBUG=-all timeout 300 wine "$folder/threads.exe" # says: no report
    echo "the test of threads passed under $(wine --version)"
  else
    echo "there is no wine: threads.exe was not run"
  fi
fi
