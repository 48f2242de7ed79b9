#include "transport/same_terms.hpp"

#include <sstream>
#include <utility>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

// "max_tokens=64 (rank 1) against max_tokens=32 (rank 0)", from two lists of words that are equal but for some. Lists
// that differ in their first word are of different kinds: nothing else is compared.
std::string differences(const std::string& mine, int32_t rank, const std::string& theirs, int32_t other) {
  std::istringstream left(mine), right(theirs);
  std::string result, a, b;
  bool first = true;
  while (left >> a && right >> b) {
    if (a != b) result += text(result.empty() ? "" : ", ", a, " (rank ", rank, ") against ", b, " (rank ", other, ")");
    if (std::exchange(first, false) && a != b) break;
  }
  return result.empty() ? text("'", mine, "' (rank ", rank, ") against '", theirs, "' (rank ", other, ")") : result;
}

}  // namespace

void check_same_terms(const TermsOf& mine, const TermsOf& theirs) {
  if (mine.terms == theirs.terms && mine.bytes == theirs.bytes) return;
  throw InvalidArgument(text(
      "all ranks must prepare with the same options: ",
      mine.terms == theirs.terms
          ? text(mine.bytes, " bytes (rank ", mine.rank, ") against ", theirs.bytes, " bytes (rank ", theirs.rank, ")")
          : differences(mine.terms, mine.rank, theirs.terms, theirs.rank)));
}

}  // namespace tileoverlap
