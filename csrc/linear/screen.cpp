#include "linear/screen.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "core/parallel.h"
#include "linear/dual_kernels.h"
#include "linear/prepare.h"

namespace xmc::linear {
namespace {

// One thread's lane group.
class Screen {
 public:
  Screen(const LinearProblem& problem, const PreparedFeatures& X, const MultipliersView& old,
         const std::vector<int32_t>& changed, int64_t added)
      : problem_(problem),
        X_(X),
        old_(old),
        changed_(changed),
        added_(added),
        w_(X.D * kLanes),
        alpha_(X.n * kLanes),
        z_(static_cast<int64_t>(changed.size()) * kLanes),
        positive_(X.n),
        seen_(X.n) {
    lanes_.n = X.n;
    lanes_.D = X.D;
    lanes_.x = X.view();
    lanes_.w = w_.data();
    lanes_.alpha = alpha_.data();
    lanes_.positive = positive_.data();
    lanes_.balance = balance_;
  }

  // Of up to kLanes labels.
  void run(const int32_t* labels, int count, double* loss) {
    std::fill_n(w_.data(), w_.size(), 0.f);
    gather(labels, count);
    dual_kernels().add_rows(lanes_, support_.data(), static_cast<int64_t>(support_.size()), kAllLanes);
    dual_kernels().dots(lanes_, changed_.data(), static_cast<int64_t>(changed_.size()), z_.data());
    for (int l = 0; l < count; ++l) loss[l] = added_loss(l);
    clear(labels, count);
  }

 private:
  void gather(const int32_t* labels, int count) {
    support_.clear();
    for (int l = 0; l < count; ++l) {
      const CsrView<>& a = old_.alpha;
      for (int64_t t = a.begin(labels[l]); t < a.end(labels[l]); ++t) {
        const int32_t i = a.indices[t];
        alpha_[int64_t{i} * kLanes + l] = a.data[t];
        if (!seen_[i]) support_.push_back(i);
        seen_[i] = 1;
      }
      for (const int32_t i : problem_.positive_rows(labels[l])) {
        positive_[i] = static_cast<uint16_t>(positive_[i] | 1u << l);
      }
      if (X_.bias != 0) w_[(X_.D - 1) * kLanes + l] = old_.bias_weight[labels[l]];
    }
    std::sort(support_.begin(), support_.end());
  }

  void clear(const int32_t* labels, int count) {
    for (const int32_t i : support_) {
      seen_[i] = 0;
      std::fill_n(alpha_.data() + int64_t{i} * kLanes, kLanes, 0.f);
    }
    for (int l = 0; l < count; ++l) {
      for (const int32_t i : problem_.positive_rows(labels[l])) positive_[i] = 0;
    }
  }

  double added_loss(int l) {
    double sum = 0;
    for (size_t u = 0; u < changed_.size(); ++u) {
      const double slack = 1 + static_cast<double>(z_[static_cast<int64_t>(u) * kLanes + l]);
      if (!(slack > 0)) continue;
      if (changed_[u] < added_) return std::numeric_limits<double>::infinity();
      sum += slack * slack;
    }
    return problem_.C * sum;
  }

  const LinearProblem& problem_;
  const PreparedFeatures& X_;
  const MultipliersView& old_;
  const std::vector<int32_t>& changed_;
  const int64_t added_;
  Buffer<float> w_, alpha_, z_;
  Buffer<uint16_t> positive_;
  Buffer<uint8_t> seen_;
  std::vector<int32_t> support_;
  float balance_[kLanes] = {};
  LaneGroup lanes_;
};

}  // namespace

std::vector<double> added_loss(const LinearProblem& problem, const MultipliersView& old,
                               const ChangedRows& changed, Span<const int32_t> labels, int threads) {
  const PreparedFeatures X = prepare_features(problem, false, threads);
  std::vector<int32_t> rows = changed.removed;
  for (int64_t i = changed.first_added; i < X.n; ++i) rows.push_back(static_cast<int32_t>(i));
  std::vector<double> loss(labels.size());
  std::vector<std::unique_ptr<Screen>> screens(threads);
  parallel_for(chunk_count(labels.size(), kLanes), threads, [&](int64_t group, int thread) {
    if (!screens[thread]) {
      screens[thread] = std::make_unique<Screen>(problem, X, old, rows, changed.first_added);
    }
    const int64_t first = group * kLanes;
    const int count = static_cast<int>(std::min<int64_t>(kLanes, labels.size() - first));
    screens[thread]->run(labels.data() + first, count, loss.data() + first);
  });
  return loss;
}

}  // namespace xmc::linear
