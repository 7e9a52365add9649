#!/bin/sh
# usage: tests/fuzz/run.sh [SECONDS] [SEED]
# Builds the fuzz targets with the address and undefined-behaviour sanitizers and runs each for SECONDS.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for target in "$root"/tests/fuzz/fuzz_*.cpp; do
  program="$out/$(basename "$target" .cpp)"
  "${CXX:-g++}" -std=c++20 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined \
    -fno-sanitize-recover=all -pthread -I "$root/csrc" "$target" "$root"/csrc/data/*.cpp \
    "$root/csrc/core/parallel.cpp" -o "$program"
  "$program" "${1:-10}" "${2:-1}"
done
