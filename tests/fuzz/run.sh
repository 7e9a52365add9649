#!/bin/sh
# usage: tests/fuzz/run.sh [SECONDS] [SEED] [keep]
# Builds the fuzz targets with the address and undefined-behaviour sanitizers and runs each for SECONDS: with
# libFuzzer (coverage-guided) where clang++ has it, else with the targets' own mutating main. Model files, of which there
# are the most kinds, get six times as long.
# libFuzzer starts from the inputs in corpus/TARGET.tar.xz; with `keep` those that reach something new are put there too.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
all=${1:-10}
seed=${2:-1}
keep=${3:-}
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
fuzz() { # TARGET SECONDS: from the kept inputs on
  kept=$here/corpus/$1.tar.xz
  mkdir "$out/$1.found" "$out/$1.kept"
  [ ! -f "$kept" ] || tar -xJf "$kept" -C "$out/$1.kept"
  (cd "$out" && "./$1" "$1.found" "$1.kept" -max_total_time="$2" -seed="$seed" -verbosity=0 -print_funcs=0 -print_final_stats=1) \
    2>"$out/log" || { cat "$out/log"; exit 1; }
  grep -a '^stat::' "$out/log"
  [ "$keep" = keep ] || return 0
  mkdir "$out/$1.merged"
  (cd "$out" && "./$1" -merge=1 "$1.merged" "$1.kept" "$1.found") 2>"$out/log" || { cat "$out/log"; exit 1; }
  mkdir -p "$here/corpus"
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cJf "$kept" -C "$out/$1.merged" .
  echo "$1: $(ls "$out/$1.merged" | wc -l) inputs kept"
}
flags="-std=c++20 -DXMC_SIMD_NS=baseline -DXMC_SIMD_IS_baseline -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all -pthread"
build() { # TARGET: its program; what another target has compiled is taken as it is
  objects=
  : >"$out/todo"
  for source in "$root/tests/fuzz/$1.cpp" $(sources "$1") "$root/csrc/core/parallel.cpp" "$root/csrc/core/numa.cpp"; do
    object=$out/$(echo "${source#"$root/"}" | tr / -).o
    objects="$objects $object"
    [ -f "$object" ] || printf '%s\n' "$source" -o "$object" >>"$out/todo"
  done
  tr '\n' '\0' <"$out/todo" | xargs -0 -n 3 -P 2 $compiler $flags -I "$root/csrc" -c
  $compiler $flags $objects -o "$out/$1"
}
for target in "$root"/tests/fuzz/fuzz_*.cpp; do
  name=$(basename "$target" .cpp)
  seconds=$all
  [ "$name" != fuzz_model ] || seconds=$((6 * all))
  build "$name"
  echo "$name: $compiler, $seconds s"
  case $compiler in
    clang*) fuzz "$name" "$seconds" ;;
    *) "$out/$name" "$seconds" "$seed" ;;
  esac
done
