#include "data/diagnose.h"

#include <cmath>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "data/number.h"

namespace xmc::data {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t';
}

class LineCheck {
 public:
  LineCheck(std::string_view text, const TextFormat& format, int64_t line)
      : padded_(std::string(text) + std::string("\n\0\0\0\0\0\0\0\0", 9)),
        size_(text.size()),
        format_(format),
        line_(line) {}

  std::string diagnose() {
    const std::string_view text(padded_.data(), size_);
    size_t at = 0;
    if (format_.label_field && at < size_ && !is_space(text[0]) && !comment(0)) {
      const std::string_view field = text.substr(0, text.find_first_of(" \t"));
      const bool is_feature = field.find(':') != field.npos && field.find(',') == field.npos;
      if (!is_feature) {
        labels(field);
        at = field.size();
      }
    }
    while (message_.empty()) {
      while (at < size_ && is_space(text[at])) ++at;
      if (at == size_ || comment(at)) break;
      const size_t end = std::min(text.find_first_of(" \t", at), size_);
      feature(at, text.substr(at, end - at));
      at = end;
    }
    if (message_.empty() && format_.sum_duplicates) sums();
    if (message_.empty()) fail(0, "unreadable line", text);
    return message_;
  }

 private:
  bool comment(size_t at) const { return format_.comments && padded_[at] == '#'; }

  void fail(size_t at, const std::string& reason, std::string_view token) {
    if (message_.empty()) {
      message_ = complaint(format_, line_, static_cast<int64_t>(at) + 1, reason, token);
    }
  }

  // Reads the id at `at`, which must end at `stop`.
  bool id(const char* what, size_t at, size_t stop, int64_t count, std::string_view token, int64_t& out) {
    const char* const p = padded_.data() + at;
    uint64_t value = 0;
    const char* const end = parse_id(p, value);
    const std::string range =
        count > 0 ? std::to_string(format_.base) + ".." + std::to_string(format_.base + count - 1) : "none";
    if (end != padded_.data() + stop) {
      const bool negative = *p == '-' && parse_id(p + 1, value) == padded_.data() + stop;
      const std::string problem =
          negative ? " id out of range, expected " + range : " id expected (a whole number)";
      fail(at, what + problem, token);
      return false;
    }
    out = static_cast<int64_t>(value) - format_.base;
    if (out < 0 || out >= count) fail(at, std::string(what) + " id out of range, expected " + range, token);
    return message_.empty();
  }

  void labels(std::string_view field) {
    std::unordered_set<int64_t> seen;
    size_t at = 0;
    while (message_.empty()) {
      const size_t end = std::min(field.find(',', at), field.size());
      const std::string_view token = field.substr(at, end - at);
      int64_t label = 0;
      if (!id("label", at, end, format_.n_labels, token, label)) return;
      if (!seen.insert(label).second && !format_.sum_duplicates) return fail(at, "repeated label", token);
      if (end == field.size()) return;
      at = end + 1;
    }
  }

  void feature(size_t at, std::string_view token) {
    const size_t colon = token.find(':');
    if (colon == token.npos) return fail(at, "feature:value expected", token);
    int64_t feature = 0;
    if (!id("feature", at, at + colon, format_.n_features, token, feature)) return;
    const char* const p = padded_.data() + at + colon + 1;
    float value = 0;
    const char* const end = parse_value(p, value);
    if (end != padded_.data() + at + token.size()) return bad_value(at, token, end, value);
    if (!format_.sum_duplicates && sums_.count(feature)) return fail(at, "repeated feature", token);
    Sum& sum = sums_[feature];
    sum.value += value;
    sum.last = {at, token.size()};
    if (!std::isfinite(sum.value) && !sum.overflow) sum.overflow = true;
  }

  void bad_value(size_t at, std::string_view token, const char* end, float value) {
    std::string word;
    for (const char c : token.substr(token.find(':') + 1)) {
      if (c != '-' && c != '+') word += static_cast<char>(c | 0x20);
    }
    if (word == "nan" || word == "inf" || word == "infinity") return fail(at, "value is not finite", token);
    if (!end && std::isinf(value)) return fail(at, "value is too large for a 32-bit float", token);
    fail(at, "value expected (a decimal number)", token);
  }

  // Sums that overflow are known only at the end of the line: report the last token of the first such.
  void sums() {
    const Sum* worst = nullptr;
    for (const auto& [feature, sum] : sums_) {
      if (sum.overflow && (!worst || sum.last.at < worst->last.at)) worst = &sum;
    }
    if (worst) {
      fail(worst->last.at, "sum of a repeated feature is too large for a 32-bit float",
           std::string_view(padded_).substr(worst->last.at, worst->last.size));
    }
  }

  struct Place {
    size_t at = 0;
    size_t size = 0;
  };
  struct Sum {
    float value = 0;
    bool overflow = false;
    Place last{};
  };

  const std::string padded_;
  const size_t size_;
  const TextFormat& format_;
  const int64_t line_;
  std::unordered_map<int64_t, Sum> sums_;
  std::string message_;
};

}  // namespace

std::string quoted(std::string_view token) {
  constexpr size_t kShown = 40;
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : token.substr(0, kShown)) {
    const auto u = static_cast<unsigned char>(c);
    if (u >= 0x20 && u < 0x7F) {
      out += c;
    } else {
      out += {'\\', 'x', kHex[u >> 4], kHex[u & 15]};
    }
  }
  return out + (token.size() > kShown ? "...'" : "'");
}

std::string complaint(const TextFormat& format, int64_t line, int64_t column, const std::string& reason,
                      std::string_view token) {
  return format.name + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " + reason + ", got " +
         quoted(token);
}

std::string diagnose(std::string_view text, const TextFormat& format, int64_t line) {
  return LineCheck(text, format, line).diagnose();
}

}  // namespace xmc::data
