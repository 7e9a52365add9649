#include "mach/hash.h"

#include "core/vec.h"

namespace xmc::XMC_SIMD_NS {
namespace {

// Written for the vectoriser. Only bits 32 and up of a * l + b matter:
//   (a l + b) >> 32 = a_high l + ((a_low l + b) >> 32)   (mod 2^32, b split by the carry of the low half)
void range(uint64_t a, uint64_t b, uint32_t buckets, uint32_t first, int64_t n, uint16_t* out) {
  const auto a_low = static_cast<uint32_t>(a), a_high = static_cast<uint32_t>(a >> 32);
  const uint64_t b_low = b & 0xffffffffu;
  const auto b_high = static_cast<uint32_t>(b >> 32);
  const auto size = static_cast<uint32_t>(n);
  for (uint32_t i = 0; i < size; ++i) {
    const uint32_t label = first + i;
    // a_low * label + b_low < 2^64: (2^32 - 1)^2 + 2^32 - 1 fits
    const auto carry = static_cast<uint32_t>((static_cast<uint64_t>(a_low) * label + b_low) >> 32);
    const uint32_t u = a_high * label + b_high + carry;
    out[i] = static_cast<uint16_t>((static_cast<uint64_t>(u) * buckets) >> 32);
  }
}

}  // namespace

extern const HashKernels hash_kernels_table = {&range};

}  // namespace xmc::XMC_SIMD_NS
