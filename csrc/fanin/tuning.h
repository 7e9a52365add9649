// The tuned constants of fixed fan-in. `python -m bench.speed.bench_fanin` measures them: change one, rebuild,
// run it before and after. None of them changes a result, except those of FeatureSums (the order of sums).
#pragma once

#include <cstdint>

namespace xmc::fanin {

inline constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

// Memory
inline constexpr int64_t kStreamBytes =
    8 * kMiB;                                   // larger results bypass the caches: they would not stay there
inline constexpr int64_t kFarTileBytes = kMiB;  // larger tiles of x do not stay in L2: lines are prefetched
inline constexpr int64_t kStayWeights = 256 * kKiB;  // weights (1 MiB) that a narrow, far tile works through
inline constexpr int64_t kWeightsAhead = 2048;       // weights and indices prefetched so many elements ahead
inline constexpr int64_t kCopyAhead = 64;  // cache lines of g prefetched before a LaneCopy reaches them

// Labels of a block: its weights and logits stay in L2
inline constexpr int64_t kBlockLabels = 256;
inline constexpr int64_t kLongList = 64;         // above this fan-in a quarter of that
inline constexpr int64_t kForwardLabels = 1024;  // forward: blocks of a tile that stays in L2
inline constexpr int64_t kFeatureLabels = 1024;  // gradient for the features: g is read in longer rows

// Labels of a piece: its outputs stay in L1 on their way to memory
inline constexpr int64_t kPiece = 128;
inline constexpr int64_t kPieceNarrowed = 1024;  // 16-bit outputs: rows are narrowed in long runs

// Gradients
inline constexpr int64_t kRows = 128;  // batch rows at once: their features stay in L2 for usual sizes
inline constexpr int64_t kSortedLabels = 512;  // labels of a block ordered by feature; tiles of g stay in L2
inline constexpr int64_t kSortedBatch = 96;    // above this batch the sort pays (it costs what 64 rows save)
inline constexpr int64_t kSortedUses = 8;      // and if a feature occurs at least so often in a block
inline constexpr int64_t kSumParts = 16;       // FeatureSums: at most so many sums over a part of the labels,
inline constexpr int64_t kSumBytes = 16 * kMiB;  // so much memory,
inline constexpr int64_t kSumShare = 256;        // and so many connections for each feature and sum

}  // namespace xmc::fanin
