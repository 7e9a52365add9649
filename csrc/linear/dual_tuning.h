// The tuned constants of the blocked dual solver (dual.h). None changes the solution, only the way there.
// Tuned on debtags and EURLex-4K; to tune one, change it and compare the seconds of
//   python -m bench.speed.bench_linear peers --sets debtags eurlex-4k
#pragma once

#include <cstdint>

namespace xmc::linear {

// ---- A step (kernels)
inline constexpr float kRelaxation = 1.2f;  // over-relaxed steps (any in (0, 2) converges): fewer epochs
inline constexpr float kDelayed = 1.05f;    // more than 1: see DualKernels::epoch
inline constexpr int64_t kMany = 64;        // rows of an epoch from which on it may look ahead
inline constexpr double kAlike = 0.25;      // rows less alike than this (mean cosine) look ahead
inline constexpr float kNear = 0.01f;       // how far outside the margin a full pass keeps rows

// ---- An epoch
inline constexpr int kMaxEpochs = 60;    // per round
inline constexpr double kSlight = 0.5;   // projected gradients below this share of the tolerance are skipped
inline constexpr int64_t kWindow = 256;  // rows of an epoch that are sorted by length
inline constexpr int32_t kLengths = 16;  // different lengths, in units of kPad

// ---- A round: its inner tolerance is a factor times the label's limit on |g|
inline constexpr double kRound2 = 3;          // the factor of the second round
inline constexpr double kRound3 = 1.2;        // of the third
inline constexpr double kTighten = 0.5;       // what later factors are multiplied by
inline constexpr double kNearlyThere = 4;     // ... when the violation is below this many limits
inline constexpr int32_t kPatientRounds = 3;  // ... or after so many rounds in any case
inline constexpr int64_t kFrequent =
    512;  // with a bias, a label on this fraction of the rows needs three rounds

inline constexpr double kWarm = 1.4;      // of the first round from an earlier solution
inline constexpr int kNewRowEpochs = 2;   // ... before it, on the new rows alone
inline constexpr double kWarmSlight = 1;  // kSlight there: few of the rows that lanes share are its own

// ---- The end
inline constexpr double kPromising = 1.5;  // the exact gradient is computed below this many limits
inline constexpr int kBaseRounds =
    8;  // of the solution without positives: further ones only move rounding errors
inline constexpr int kCloser = 8;  // rounds spent on the bound of |w - w*| at most (rounding may forbid it)
inline constexpr double kCentered = 0.5;  // of the limit, with a bias, whose part of g is about 0 then

}  // namespace xmc::linear
