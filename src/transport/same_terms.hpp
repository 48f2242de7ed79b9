#pragma once
// What the ranks of one allocation must agree on.

#include <cstddef>
#include <cstdint>
#include <string>

namespace tileoverlap {

// One rank's words on an allocation. Borrows.
struct TermsOf {
  int32_t rank;
  const std::string& terms;  // "max_tokens=64 top_k=2 ..."
  size_t bytes;
};

// Throws InvalidArgument naming both ranks and what differs: "max_tokens=64 (rank 1) against max_tokens=32 (rank 0)".
void check_same_terms(const TermsOf& mine, const TermsOf& theirs);

}  // namespace tileoverlap
