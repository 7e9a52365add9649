#include "data/number.h"

#include <charconv>
#include <limits>
#include <string>
#include <system_error>

#if !defined(__cpp_lib_to_chars)  // libc++ before 20 has no from_chars for floating point
#include <locale.h>
#include <stdlib.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif
#endif

namespace xmc::data {

bool parse_exact(const char* first, const char* last, float& value) {
#if defined(__cpp_lib_to_chars)
  // from_chars reports too small and too large alike: the place of the leading digit tells them apart.
  const auto result = std::from_chars(first, last, value);
  if (result.ec != std::errc::result_out_of_range) return value <= std::numeric_limits<float>::max();
  int64_t place = 0;  // 10^(place - 1) <= mantissa < 10^place
  bool leading = true;
  bool fraction = false;
  const char* p = first;
  for (; p < last && (is_digit(*p) || *p == '.'); ++p) {
    if (*p == '.') {
      fraction = true;
    } else if (!leading || *p != '0') {
      leading = false;
      place += !fraction;
    } else {
      place -= fraction;
    }
  }
  int64_t exponent = 0;
  if (p < last) {
    ++p;
    const bool down = *p == '-';
    p += down || *p == '+';
    for (; p < last; ++p) {
      if (exponent < std::numeric_limits<int64_t>::max() / 16) exponent = exponent * 10 + (*p - '0');
    }
    if (down) exponent = -exponent;
  }
  const bool too_large = place + exponent > 0;
  value = too_large ? std::numeric_limits<float>::infinity() : 0.0f;
  return !too_large;
#else
#if defined(_WIN32)
  static const _locale_t c_locale = _create_locale(LC_ALL, "C");
  value = _strtof_l(std::string(first, last).c_str(), nullptr, c_locale);
#else
  static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
  value = strtof_l(std::string(first, last).c_str(), nullptr, c_locale);
#endif
  return value != std::numeric_limits<float>::infinity();
#endif
}

}  // namespace xmc::data
