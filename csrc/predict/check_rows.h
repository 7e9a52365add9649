// What a model's rows must be before anything reads them: files come from anywhere.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace xmc::predict {

// Throws std::invalid_argument unless indptr starts at 0 and never falls, ends at `entries`, and the columns
// of each row ascend within [0, cols).
void check_rows(const CsrView<int32_t>& rows, int64_t entries, int threads);
void check_rows(const CsrView<uint16_t>& rows, int64_t entries, int threads);

}  // namespace xmc::predict
