// The pruned weights of finished lanes, in the caller's numbering of the features.
#pragma once

#include <bit>
#include <vector>

#include "linear/dual_kernels.h"
#include "linear/prune.h"

namespace xmc::linear {

// fn(lane) for each bit of `mask`.
template <class Fn>
void for_lanes(uint32_t mask, const Fn& fn) {
  for (; mask; mask &= mask - 1) fn(std::countr_zero(mask));
}

class LaneWeights {
 public:
  explicit LaneWeights(const PreparedFeatures& X)
      : X_(X),
        features_(X.D),
        place_(X.D),
        chosen_(X.D),
        feature_masks_(X.D),
        place_masks_(X.D),
        kept_((X.D + 63) / 64) {}

  // Into solved[lane]; `scratch` has D floats.
  void take(const LaneGroup& lanes, uint32_t done, const PruneRule& prune, float* scratch,
            SolvedLabel* solved) {
    const int64_t count = select(lanes, done, prune);
    for_lanes(done, [&](int l) {
      int64_t size = 0;  // no branch on the mask: it cannot be predicted
      for (int64_t t = 0; t < count; ++t) {
        chosen_[size] = features_[t];
        scratch[size] = lanes.w[int64_t{place_[features_[t]]} * kLanes + l];
        size += feature_masks_[t] >> l & 1;
      }
      solved[l].features.assign(chosen_.begin(), chosen_.begin() + size);
      solved[l].weights.assign(scratch, scratch + size);
      keep_largest(solved[l], prune.keep_top);
    });
  }

 private:
  // features_: those that some lane keeps, ascending in the caller's numbering (sorted by a bitmap), and in
  // feature_masks_ which lanes do; place_: their lines in w. Returns their number.
  int64_t select(const LaneGroup& lanes, uint32_t done, const PruneRule& rule) {
    int64_t count =
        dual_kernels().select(lanes, done, rule.threshold, features_.data(), feature_masks_.data());
    if (X_.bias != 0 && rule.bias_threshold != rule.threshold) {
      count = select_bias(lanes, done, rule.bias_threshold, count);
    }
    for (int64_t t = 0; t < count; ++t) {
      const int32_t j = X_.original[features_[t]];
      kept_[j / 64] |= uint64_t{1} << (j % 64);
      place_[j] = features_[t];
      place_masks_[j] = feature_masks_[t];
    }
    count = 0;
    for (size_t word = 0; word < kept_.size(); ++word) {
      for (; kept_[word]; kept_[word] &= kept_[word] - 1) {
        const auto j = static_cast<int32_t>(word * 64) + std::countr_zero(kept_[word]);
        feature_masks_[count] = place_masks_[j];
        features_[count++] = j;
      }
    }
    return count;
  }

  // The bias, which is the last feature, at a threshold of its own.
  int64_t select_bias(const LaneGroup& lanes, uint32_t done, float threshold, int64_t count) {
    const auto bias = static_cast<int32_t>(X_.D - 1);
    if (count && features_[count - 1] == bias) --count;
    uint32_t keep = 0;
    for_lanes(done, [&](int l) {
      const float w = lanes.w[int64_t{bias} * kLanes + l];
      keep |= static_cast<uint32_t>(w != 0 && std::abs(w) >= threshold) << l;
    });
    if (!keep) return count;
    features_[count] = bias;
    feature_masks_[count] = static_cast<uint16_t>(keep);
    return count + 1;
  }

  const PreparedFeatures& X_;
  std::vector<int32_t> features_, place_, chosen_;
  std::vector<uint16_t> feature_masks_, place_masks_;
  std::vector<uint64_t> kept_;  // one bit per feature
};

}  // namespace xmc::linear
