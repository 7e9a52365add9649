// Says what is wrong with a line. Slow and simple: it runs once, on the line that the fast parser refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/text.h"

namespace xmc::data {

// A token for a message: in quotes, other than printable ASCII as \xNN, cut after 40 bytes.
std::string quoted(std::string_view token);

// "name:line:column: reason, got 'token'"; columns count bytes from 1.
std::string complaint(const TextFormat& format, int64_t line, int64_t column, const std::string& reason,
                      std::string_view token);

// The complaint about the first bad token of `text` (one line without its end).
std::string diagnose(std::string_view text, const TextFormat& format, int64_t line);

}  // namespace xmc::data
