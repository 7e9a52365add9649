// Fuzz target of opening a label tree and searching it (csrc/tree/level.h, predict.h): whatever the arrays of its
// levels hold, `check` refuses them or a search stays within them. The first bytes make two good levels, each further
// group of four changes an element (which array, where, to what) or a length.
//
// With libFuzzer (-DXMC_LIBFUZZER) or with the main below: fuzz_tree SECONDS [SEED].
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "core/rng.h"
#include "drive.h"
#include "tree/predict.h"

namespace {

using namespace xmc::tree;

constexpr int64_t kFeatures = 40;

struct Arrays {
  Level level;
  std::vector<int64_t> child_start{0};
};

// `parents` nodes with up to four children each.
Arrays good_level(int64_t parents, xmc::Rng& rng) {
  Arrays out;
  std::vector<int32_t> column(kFeatures);
  for (int32_t j = 0; j < kFeatures; ++j) column[static_cast<size_t>(j)] = j;
  for (int64_t p = 0; p < parents; ++p) {
    const uint32_t children = 1 + rng.below(4);
    std::vector<int64_t> indptr{0};
    std::vector<int32_t> indices;
    std::vector<float> values, biases(children, 0.5f);
    for (uint32_t c = 0; c < children; ++c) {
      for (int32_t j = static_cast<int32_t>(rng.below(5)); j < kFeatures;
           j += 1 + static_cast<int32_t>(rng.below(9))) {
        indices.push_back(j);
        values.push_back(static_cast<float>(rng.below(9)) - 4);
      }
      indptr.push_back(static_cast<int64_t>(indices.size()));
    }
    out.level.add(indptr, indices, values, column, kFeatures, biases);
    out.child_start.push_back(out.child_start.back() + children);
  }
  return out;
}

// What a file may hold instead of a number.
template <class T>
T hostile(uint8_t how, T old) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_floating_point_v<T>) {
    const T values[] = {Limits::max(), Limits::lowest(), Limits::infinity(), Limits::quiet_NaN()};
    return values[how % 4];
  } else {
    const auto bits = static_cast<uint64_t>(old);
    const uint64_t values[] = {static_cast<uint64_t>(Limits::max()),
                               static_cast<uint64_t>(Limits::lowest()),
                               bits + 1,
                               bits - 1,
                               0,
                               how,
                               uint64_t{1} << (how % 63),
                               ~bits};
    return static_cast<T>(values[how % 8]);
  }
}

template <class T>
void change(std::vector<T>& array, const uint8_t* b) {
  if (b[1] % 16 == 15) {
    array.resize(b[2] % 64);
  } else if (!array.empty()) {
    T& value = array[(b[1] * 256u + b[2]) % array.size()];
    value = hostile(b[3], value);
  }
}

void change(Arrays& a, const uint8_t* b) {
  switch (b[0] / 2 % 10) {
    case 0:
      return change(a.child_start, b);
    case 1:
      return change(a.level.bucket_start, b);
    case 2:
      return change(a.level.feature_start, b);
    case 3:
      return change(a.level.entry_start, b);
    case 4:
      if (!a.level.bucket.empty()) {
        Bucket& bucket = a.level.bucket[(b[1] * 256u + b[2]) % a.level.bucket.size()];
        uint32_t& value = b[3] & 64 ? bucket.feature : bucket.entry;
        value = hostile(b[3], value);
      }
      return;
    case 5:
      return change(a.level.tag, b);
    case 6:
      return change(a.level.count, b);
    case 7:
      return change(a.level.child, b);
    case 8:
      return change(a.level.scale, b);
    default:
      return change(a.level.bias, b);
  }
}

// As bind/bind_tree.cpp makes it of the arrays of a file; false where it refuses their lengths.
bool view(const Arrays& a, LevelView& v) {
  const Level& l = a.level;
  v.parents = static_cast<int64_t>(a.child_start.size()) - 1;
  const size_t starts = a.child_start.size();
  if (v.parents < 0 || l.bucket_start.size() != starts || l.feature_start.size() != starts ||
      l.entry_start.size() != starts || l.tag.size() != l.count.size() || l.child.size() != l.weight.size() ||
      l.scale.size() != l.bias.size()) {
    return false;
  }
  v.buckets = static_cast<int64_t>(l.bucket.size());
  v.features = static_cast<int64_t>(l.tag.size());
  v.entries = static_cast<int64_t>(l.child.size());
  v.nodes = static_cast<int64_t>(l.scale.size());
  v.child_start = a.child_start.data();
  v.bucket_start = l.bucket_start.data();
  v.feature_start = l.feature_start.data();
  v.entry_start = l.entry_start.data();
  v.bucket = l.bucket.data();
  v.tag = l.tag.data();
  v.count = l.count.data();
  v.child = l.child.data();
  v.weight = l.weight.data();
  v.scale = l.scale.data();
  v.bias = l.bias.data();
  return true;
}

int64_t searched = 0;

void run(const uint8_t* bytes, size_t size) {
  if (size < 2) return;
  xmc::Rng rng(bytes[0]);
  std::vector<Arrays> levels;
  levels.push_back(good_level(1 + bytes[1] % 3, rng));
  levels.push_back(good_level(levels[0].child_start.back(), rng));
  for (size_t at = 2; at + 4 <= size && at < 42; at += 4) change(levels[bytes[at] & 1], bytes + at);
  std::vector<LevelView> views(2);
  int64_t above = -1;
  for (size_t i = 0; i < 2; ++i) {
    if (!view(levels[i], views[i])) return;
    try {
      check(views[i], kFeatures);
    } catch (const std::invalid_argument&) {
      return;
    }
    if (above >= 0 && views[i].parents != above) return;
    above = views[i].nodes;
  }
  ++searched;
  const std::vector<int64_t> indptr{0, 3, 3, 43};
  std::vector<int32_t> indices{0, 7, 39};
  for (int32_t j = 0; j < 40; ++j) indices.push_back(j);
  const std::vector<float> data(indices.size(), 0.5f);
  const xmc::CsrView<> X{3, kFeatures, indptr.data(), indices.data(), data.data()};
  std::vector<int32_t> ids(3 * 4);
  std::vector<float> scores(3 * 4);
  beam_search(X, views, {2, 4, 2, 1.f, 5.f, {true, false, 0}}, 1, ids.data(), scores.data());
  for (const int32_t id : ids) {
    if (id < -1 || id >= above) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  run(bytes, size);
  return 0;
}

#if !defined(XMC_LIBFUZZER)
int main(int argc, char** argv) {
  const int result = drive(argc, argv, [](xmc::Rng& rng) {
    std::string input(2 + 4 * rng.below(4), '\0');
    for (char& c : input) c = static_cast<char>(rng.below(256));
    return input;
  });
  std::printf("%lld of them searched\n", static_cast<long long>(searched));
  return result;
}
#endif
