// Decimal text to numbers, exactly.
//
// Both parsers may read up to 8 bytes past the last byte of the number: the caller pads the text (see
// text.cpp). They return the position after the number, or null if there is none.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace xmc::data {

inline bool is_digit(char c) {
  return static_cast<unsigned char>(c - '0') < 10;
}

inline uint64_t load8(const char* p) {
  uint64_t x;
  std::memcpy(&x, p, 8);
  if constexpr (std::endian::native == std::endian::big) {
    x = ((x & 0x00FF00FF00FF00FFull) << 8) | ((x >> 8) & 0x00FF00FF00FF00FFull);
    x = ((x & 0x0000FFFF0000FFFFull) << 16) | ((x >> 16) & 0x0000FFFF0000FFFFull);
    x = (x << 32) | (x >> 32);
  }
  return x;
}

struct Digits {
  uint64_t value;
  int count;  // digits at the front of the 8 bytes
};

// The run of digits at the start of the 8 bytes at p, without a branch per digit: bytes that are no digits
// get their high bit set, the digits are shifted to the top (zeros come in below), then pairs, quadruples and
// octets are joined by multiplication.
inline Digits digits8(const char* p) {
  const uint64_t x = load8(p) ^ 0x3030303030303030ull;
  const uint64_t other = ((x + 0x7676767676767676ull) | x) & 0x8080808080808080ull;
  const int count = std::countr_zero(other) >> 3;  // 8 when all are digits
  if (count == 0) return {0, 0};
  uint64_t v = x << (64 - 8 * count);
  v = (v * 10) + (v >> 8);
  v = (((v & 0x000000FF000000FFull) * 0x000F424000000064ull) +
       (((v >> 16) & 0x000000FF000000FFull) * 0x0000271000000001ull)) >>
      32;
  return {v, count};
}

// An id: digits only. Values above 2^40 come back as some number above 2^40.
inline const char* parse_id(const char* p, uint64_t& id) {
  const Digits d = digits8(p);
  if (d.count == 0) return nullptr;
  id = d.value;
  p += d.count;
  if (d.count == 8) {
    for (; is_digit(*p); ++p) {
      if (id < (uint64_t{1} << 40)) id = id * 10 + static_cast<uint64_t>(*p - '0');
    }
  }
  return p;
}

// The rare numbers the fast path below cannot round safely. [first, last) is one number of the grammar,
// without its sign. False when it is too large for a float.
bool parse_exact(const char* first, const char* last, float& value);

// A finite decimal number, [+-] digits [. digits] [e [+-] digits] with at least one digit in the mantissa, as
// the correctly rounded float. Too large for a float: null, with value set to infinity.
//
// Fast path: mantissa m < 2^53 and |exponent| <= 22, so m and 10^k are exact doubles and one multiplication
// or division rounds correctly to double. Rounding that double to float is right too unless it lies on a
// midpoint between two floats (rounding is monotonic and midpoints are doubles): those go to parse_exact, as
// do results outside the normal range of float.
inline const char* parse_value(const char* p, float& value) {
  static constexpr double kPow10[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                      1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  static constexpr uint64_t kInt10[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
  const bool negative = *p == '-';
  p += negative || *p == '+';
  const char* const first = p;
  uint64_t m = 0;
  for (; is_digit(*p); ++p) m = m * 10 + static_cast<uint64_t>(*p - '0');  // may wrap: see `digits`
  int64_t digits = p - first;
  int64_t exponent = 0;
  if (*p == '.') {
    const char* const point = p;
    ++p;
    int count;
    do {
      const Digits d = digits8(p);
      count = d.count;
      m = m * kInt10[count] + d.value;
      p += count;
    } while (count == 8);
    exponent = -(p - point - 1);
    digits -= exponent;
  }
  if (digits == 0) return nullptr;
  if ((*p | 0x20) == 'e') {
    ++p;
    const bool down = *p == '-';
    p += down || *p == '+';
    if (!is_digit(*p)) return nullptr;
    int64_t e = 0;
    for (; is_digit(*p); ++p) {
      if (e < 1000000) e = e * 10 + (*p - '0');
    }
    exponent += down ? -e : e;
  }
  if (digits <= 19 && m < (uint64_t{1} << 53) && exponent >= -22 && exponent <= 22) {
    const auto mantissa = static_cast<double>(m);
    const double d = exponent < 0 ? mantissa / kPow10[-exponent] : mantissa * kPow10[exponent];
    const bool midpoint = (std::bit_cast<uint64_t>(d) & 0x1FFFFFFFull) == 0x10000000ull;
    if ((d >= 0x1p-126 && d < 0x1p127 && !midpoint) || m == 0) {
      value = static_cast<float>(negative ? -d : d);
      return p;
    }
  }
  float magnitude = 0;
  const bool fits = parse_exact(first, p, magnitude);
  value = negative ? -magnitude : magnitude;
  return fits ? p : nullptr;
}

}  // namespace xmc::data
