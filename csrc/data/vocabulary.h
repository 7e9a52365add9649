// A set of terms numbered from 0 in the order they were added: open addressing over strings in one arena.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "data/number.h"

namespace xmc::data {

class Vocabulary {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFFu;
  static constexpr size_t kPad = 8;  // a term given to find and add must be readable so far past its end

  Vocabulary() : slots_(1024, kEmpty), arena_(kPad) {}

  uint32_t size() const { return static_cast<uint32_t>(entries_.size()); }
  std::string_view term(uint32_t id) const {
    return {arena_.data() + entries_[id].offset, entries_[id].length};
  }

  uint32_t find(std::string_view term) const {
    const uint64_t h = hash(term);
    for (uint64_t at = h & mask();; at = (at + 1) & mask()) {
      const Slot slot = slots_[at];
      if (slot.id == kNone) return kNone;
      if (slot.tag == static_cast<uint32_t>(h >> 32) && same(slot.id, term)) return slot.id;
    }
  }

  uint32_t add(std::string_view term) {
    const uint64_t h = hash(term);
    uint64_t at = h & mask();
    for (; slots_[at].id != kNone; at = (at + 1) & mask()) {
      if (slots_[at].tag == static_cast<uint32_t>(h >> 32) && same(slots_[at].id, term)) return slots_[at].id;
    }
    const uint32_t id = size();
    const size_t used = arena_.size() - kPad;
    entries_.push_back({used, static_cast<uint32_t>(term.size()), h});
    arena_.resize(used + term.size() + kPad);
    std::memcpy(arena_.data() + used, term.data(), term.size());
    slots_[at] = {id, static_cast<uint32_t>(h >> 32)};
    if (entries_.size() * 2 > slots_.size()) grow();
    return id;
  }

 private:
  struct Slot {
    uint32_t id;
    uint32_t tag;  // upper half of the hash
  };
  struct Entry {
    size_t offset;
    uint32_t length;
    uint64_t hash;
  };
  static constexpr Slot kEmpty{kNone, 0};

  uint64_t mask() const { return slots_.size() - 1; }

  bool same(uint32_t id, std::string_view term) const {
    const Entry& e = entries_[id];
    return e.length == term.size() && std::memcmp(arena_.data() + e.offset, term.data(), term.size()) == 0;
  }

  // Eight bytes at a time; of the last load only the term's own bytes count.
  static uint64_t hash(std::string_view term) {
    const char* p = term.data();
    size_t n = term.size();
    uint64_t h = n * 0x9E3779B97F4A7C15ull;
    for (; n > 8; n -= 8, p += 8) h = ((h ^ load8(p)) * 0xBF58476D1CE4E5B9ull) ^ (h >> 29);
    if (n > 0) h = (h ^ (load8(p) & (~uint64_t{0} >> (64 - 8 * n)))) * 0xBF58476D1CE4E5B9ull;
    h ^= h >> 32;
    h *= 0x94D049BB133111EBull;
    return h ^ (h >> 29);
  }

  void grow() {
    slots_.assign(slots_.size() * 2, kEmpty);
    for (uint32_t id = 0; id < size(); ++id) {
      uint64_t at = entries_[id].hash & mask();
      while (slots_[at].id != kNone) at = (at + 1) & mask();
      slots_[at] = {id, static_cast<uint32_t>(entries_[id].hash >> 32)};
    }
  }

  std::vector<Slot> slots_;
  std::vector<Entry> entries_;
  std::vector<char> arena_;  // the terms one after the other, then kPad bytes to read ahead
};

}  // namespace xmc::data
