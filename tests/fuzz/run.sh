#!/bin/sh
# usage: tests/fuzz/run.sh [SECONDS] [SEED]
# Builds the fuzz targets with the address and undefined-behaviour sanitizers and runs each for SECONDS: with
# libFuzzer (coverage-guided) where clang++ has it, else with the targets' own mutating main. Model files, of which there
# are the most kinds, get six times as long.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
all=${1:-10}
seed=${2:-1}
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$out/probe.cpp"
if clang++ -fsanitize=fuzzer "$out/probe.cpp" -o "$out/probe" 2>/dev/null; then
  compiler="clang++ -fsanitize=fuzzer,address,undefined -DXMC_LIBFUZZER"
else
  compiler="${CXX:-g++} -fsanitize=address,undefined"
fi
sources() { # of a target
  case $1 in
    fuzz_tree) echo "$root/csrc/tree/level.cpp" "$root/csrc/tree/predict.cpp" ;;
    fuzz_model) ls "$root"/csrc/predict/*.cpp "$root/csrc/core/simd.cpp" "$root/csrc/core/buffer_pool.cpp" ;;
    *) ls "$root"/csrc/data/*.cpp ;;
  esac
}
for target in "$root"/tests/fuzz/fuzz_*.cpp; do
  name=$(basename "$target" .cpp)
  seconds=$all
  [ "$name" != fuzz_model ] || seconds=$((6 * all))
  $compiler -std=c++20 -DXMC_SIMD_NS=baseline -DXMC_SIMD_IS_baseline -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all -pthread -I "$root/csrc" \
    "$target" $(sources "$name") "$root/csrc/core/parallel.cpp" "$root/csrc/core/numa.cpp" -o "$out/$name"
  echo "$name: $compiler, $seconds s"
  case $compiler in
    clang*)
      (cd "$out" && "./$name" -max_total_time="$seconds" -seed="$seed" -verbosity=0 -print_funcs=0 -print_final_stats=1) \
        2>"$out/log" || { cat "$out/log"; exit 1; }
      grep -a '^stat::' "$out/log"
      ;;
    *) "$out/$name" "$seconds" "$seed" ;;
  esac
done
