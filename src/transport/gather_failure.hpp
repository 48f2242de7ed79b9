#pragma once
// Why a host all-gather makes no further steps: kept on each rank, told to the others.

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "tileoverlap/core/error.hpp"
#include "transport/frame_stream.hpp"

namespace tileoverlap {

struct GatherFailure {
  enum class Kind : uint32_t { kError, kInvalidArgument, kWaitTimeout };

  Kind kind = Kind::kError;
  WaitRecord record = {};  // of kWaitTimeout
  std::string text;        // the sentence; of kWaitTimeout what ends it

  // Throws it, on the rank given.
  [[noreturn]] void raise(int32_t rank) const;
  Bytes encode() const;
  static GatherFailure decode(std::span<const std::byte> bytes);
};

// Thrown inside the all-gather, to end it.
struct GatherFailed {
  explicit GatherFailed(GatherFailure why) : failure(std::move(why)) {}
  explicit GatherFailed(std::string sentence, GatherFailure::Kind kind = GatherFailure::Kind::kError)
      : failure{.kind = kind, .text = std::move(sentence)} {}
  explicit GatherFailed(const WaitRecord& record, std::string detail = {})
      : failure{.kind = GatherFailure::Kind::kWaitTimeout, .record = record, .text = std::move(detail)} {}

  GatherFailure failure;
};

}  // namespace tileoverlap
