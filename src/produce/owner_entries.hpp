#pragma once
// What StoreTask::maps points to, made on the host.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "produce/gpu_producer.hpp"

namespace tileoverlap {

// Where rows of one owner go; no rows: nothing is ever stored there.
struct OwnerRows {
  std::byte* memory;
  int64_t rows;
};

// One entry an owner, by rank, for rows of `n` elements.
inline std::vector<std::byte> owner_entries(const GpuProducer& producer, std::span<const OwnerRows> owners, int64_t n) {
  std::vector<std::byte> entries(owners.size() * producer.owner_entry_bytes());
  for (size_t rank = 0; rank < owners.size(); ++rank) {
    const auto& [memory, rows] = owners[rank];
    if (rows > 0) producer.encode_owner(memory, rows, n, entries.data() + rank * producer.owner_entry_bytes());
  }
  return entries;
}

}  // namespace tileoverlap
