#!/usr/bin/env bash
# usage: tests/platforms/arm64.sh FOLDER [--short] [pytest arguments]
# Builds the core for arm64 (Debian's cross compiler, warnings are errors) and runs its tests (core_tests.py) under
# qemu-user with a Python of Debian arm64 and the aarch64 wheels of PyPI. --short compiles with -O1 and runs a part of
# them, a few minutes. Needs root for apt; ends with 77 and a message where compiler, qemu or packages cannot be had.
# FOLDER is kept: a second run only builds what has changed.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "${1:?the folder to build in}"
folder=$(cd "$1" && pwd)
shift
export PIP_DISABLE_PIP_VERSION_CHECK=1

optimize=-O3 strict=ON
[ "${1:-}" != --short ] || optimize=-O1 strict=OFF # GCC warns of other things there
missing() {
  echo "arm64: skipped, $1 cannot be had here" >&2
  exit 77
}
for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v $tool >/dev/null ||
    apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user >/dev/null 2>&1 || missing "$tool"
done
if [ ! -x "$folder/sysroot/usr/bin/python3.11" ]; then
  { dpkg --add-architecture arm64 && apt-get update -qq; } >/dev/null 2>&1 || missing "the list of arm64 packages"
  packages="python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libpython3.11-dev libc6 libgcc-s1 libstdc++6"
  packages+=" libgomp1 libexpat1 zlib1g libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1"
  packages+=" libncursesw6 libtinfo6 libreadline8 libdb5.3 libnsl2 libtirpc3"
  mkdir -p "$folder/debs" "$folder/sysroot"
  (cd "$folder/debs" && apt-get download -qq $(printf '%s:arm64 ' $packages)) 2>/dev/null || missing "Debian's Python for arm64"
  for package in "$folder"/debs/*.deb; do dpkg-deb -x "$package" "$folder/sysroot"; done
fi
if [ ! -d "$folder/site" ]; then
  pip install -q --target "$folder/site" --python-version 3.11 --implementation cp --only-binary=:all: --no-compile \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
    numpy scipy scikit-learn tqdm joblib threadpoolctl narwhals pytest hypothesis psutil safetensors \
    -c "$root/constraints.txt"
fi

cat >"$folder/toolchain.cmake" <<'END'
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
END
cmake -S "$root" -B "$folder/build" -G Ninja -DXMC_WERROR=$strict -DXMC_CUDA=OFF -DXMC_OPTIMIZE=$optimize -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" \
  -DCMAKE_CXX_FLAGS="-isystem $folder/sysroot/usr/include" -Dpybind11_DIR="$(python3 -m pybind11 --cmakedir)" \
  -DPython_EXECUTABLE="$(command -v python3)" -DPython_INCLUDE_DIR="$folder/sysroot/usr/include/python3.11" \
  >"$folder/configure.log"
cmake --build "$folder/build"

# `sys.executable` must start under qemu too: without binfmt a script does it.
cat >"$folder/python" <<END
#!/bin/sh
exec qemu-aarch64 -L "$folder/sysroot" -0 "$folder/python" "$folder/sysroot/usr/bin/python3.11" "\$@"
END
chmod +x "$folder/python"
rm -rf "$folder/package"
cp -r "$root/python" "$folder/package"
rm -f "$folder"/package/xmc_fast/_core*.so
cp "$(ls -t "$folder"/build/_core*.so | head -1)" "$folder/package/xmc_fast/_core.so" # named after this machine
cd "$root"
PYTHONPATH="$folder/package:$folder/site" "$folder/python" tests/platforms/core_tests.py "$@"
