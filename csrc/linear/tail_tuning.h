// The tuned constants of the solver of rare labels (tail.h). None changes the solution, only the way there.
// Tuned on the set `related`; to tune one, change it and compare the milliseconds of
//   python -m bench.speed.bench_linear related
#pragma once

#include <cstdint>

namespace xmc::linear {

// ---- Where it pays: many short rows
inline constexpr int64_t kManyRows = 131072;
inline constexpr int64_t kShortRows = 24;   // mean entries of a row at most
inline constexpr double kAffordable = 0.5;  // of X's entries: those of all features of a label's positives

// ---- A search (row_search.h)
inline constexpr int64_t kFrequentShare = 32;  // features on more than one row in so many are bounded
inline constexpr int64_t kRareShare = 128;     // a glance skips features on more than one row in so many
inline constexpr double kSmall = 0.1;          // of the level: small weights that are only bounded
inline constexpr double kMostBounded = 1.0;    // of the level: the weights of bounded frequent features
inline constexpr int64_t kRowBlock = 8192;     // rows summed up together: their sums stay in L1

// ---- A label
inline constexpr int kFirstEpochs = 3;       // on the positives alone
inline constexpr int64_t kSampleStride = 4;  // of the row blocks of the sample
inline constexpr double kReach = 0.02;       // how far scores may move before rows are searched again
inline constexpr double kShareOfGap = 0.25;  // ... and at most this share of the gap -1 - b
inline constexpr double kBiasUp = 0.1;       // how far a round may move the bias upwards
inline constexpr double kLeastGap = 0.002;   // a smaller gap makes rows without common features near
inline constexpr double kUsualGap = 0.05;    // where the bias goes back to then
inline constexpr int kMaxLowerings = 4;      // ... so many times, then the label is not one for this solver

}  // namespace xmc::linear
