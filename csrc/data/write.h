// Sparse rows to text (the format of text.h).
#pragma once

#include <cstdint>
#include <string>

#include "core/types.h"

namespace xmc::data {

// Rows [first, last) of X with the labels of Y, one line each. Values are the shortest decimals that read
// back as the same float. labels = false: no label field (Y is not looked at).
std::string format_rows(const CsrView<int32_t, float>& x, const CsrView<int32_t, float>& y, bool labels,
                        int64_t first, int64_t last, int threads);

}  // namespace xmc::data
