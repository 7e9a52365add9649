#!/bin/sh
# Compiles and links the CUDA kernels: csrc/cuda/build.sh [out.so [table.md]]
# sm_75 to sm_120 (those that nvcc knows; XMC_CUDA_ARCHS) + PTX of the newest; static cudart, so that the library loads
# on machines without CUDA.
# Prints the ptxas report (registers, spills, shared memory) as a Markdown table; a spill is an error. A second
# argument takes the short form of it, a row per kernel: csrc/cuda/registers.md is made so.
set -e
cd "$(dirname "$0")/../.."
out=${1:-python/xmc_fast/libxmc_cuda.so}
nvcc=${XMC_NVCC:-nvcc}
known=$("$nvcc" --list-gpu-code)  # an older nvcc does not know the newest
codes=
for one in ${XMC_CUDA_ARCHS:-75 80 86 89 90 100 120}; do
  case " $(echo $known) " in *" sm_$one "*) arch=$one codes="$codes -gencode arch=compute_$one,code=sm_$one" ;; esac
done
[ -n "$codes" ] || { echo "nvcc knows none of the architectures, only $(echo $known)" >&2; exit 1; }
log=$(mktemp)
trap 'rm -f "$log" "$log.table"' EXIT
# shellcheck disable=SC2086
"$nvcc" -O3 -std=c++17 -Icsrc -Xcompiler -fPIC,-fvisibility=hidden -shared -cudart static $codes \
  -gencode arch=compute_${arch},code=compute_${arch} -Xptxas -v,--warn-on-spills -t 2 \
  csrc/fanin/forward.cu csrc/fanin/backward.cu csrc/decide/weighted_topk.cu csrc/gather/gather_dot.cu csrc/mach/mach.cu -o "$out" 2>"$log" || { cat "$log" >&2; exit 1; }
awk '
  /Compiling entry function/ {
    split($0, q, "\x27"); name = q[2]; arch = q[4]
    if (match(name, /[a-z_]+_kernel(ILb[01]E)?/)) name = substr(name, RSTART, RLENGTH)
    merge = name ~ /^topk/ ? "<merge>" : "<shared>"
    sub(/ILb1E/, merge, name); sub(/ILb0E/, "<plain>", name)
  }
  /bytes spill stores/ { spill = $5 + $9 }
  /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
    shared = 0; if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
    printf "| %s | %s | %s | %s | %s |\n", name, arch, registers, spill + 0, shared
  }' "$log" | sort >"$log.table"
printf '| kernel | arch | registers | spilled bytes | shared bytes |\n|---|---|---|---|---|\n'
cat "$log.table"
! grep -v '| 0 | [0-9]* |$' "$log.table" >&2
[ -z "$2" ] || {
  echo "Registers per thread (ptxas of nvcc $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')), no spills."
  echo 'Made by `csrc/cuda/build.sh out.so csrc/cuda/registers.md`.'
  echo
  awk -F' *[|] *' '
    { if (!($3 in seen)) { seen[$3]; archs[++n] = $3 } if (!($2 in shared)) names[++m] = $2
      if ($6 + 0 > shared[$2] + 0) shared[$2] = $6; else shared[$2] += 0; used[$2, $3] = $4 }
    END {
      for (i = 1; i <= n; ++i) for (j = i + 1; j <= n; ++j)
        if (substr(archs[j], 4) + 0 < substr(archs[i], 4) + 0) { t = archs[i]; archs[i] = archs[j]; archs[j] = t }
      head = "| kernel | shared bytes |"; line = "|---|---|"
      for (i = 1; i <= n; ++i) { head = head " " archs[i] " |"; line = line "---|" }
      print head "\n" line
      for (k = 1; k <= m; ++k) {
        row = "| `" names[k] "` | " shared[names[k]] " |"
        for (i = 1; i <= n; ++i) row = row " " used[names[k], archs[i]] " |"
        print row
      }
    }' "$log.table"
} >"${2:-/dev/null}"
