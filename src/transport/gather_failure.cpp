#include "transport/gather_failure.hpp"

namespace tileoverlap {
namespace {

struct Head {
  GatherFailure::Kind kind;
  WaitRecord record;
};

}  // namespace

void GatherFailure::raise(int32_t rank) const {
  switch (kind) {
    case Kind::kInvalidArgument:
      throw InvalidArgument(text);
    case Kind::kWaitTimeout:
      throw WaitTimeout(record, rank, text);
    case Kind::kError:
      break;
  }
  throw Error(text);
}

Bytes GatherFailure::encode() const {
  const Head head{.kind = kind, .record = record};
  Bytes bytes(sizeof(head) + text.size());
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::memcpy(bytes.data() + sizeof(head), text.data(), text.size());
  return bytes;
}

GatherFailure GatherFailure::decode(std::span<const std::byte> bytes) {
  const Head head = from_bytes<Head>(bytes);
  const auto tail = bytes.subspan(sizeof(head));
  return {.kind = head.kind,
          .record = head.record,
          .text = std::string(reinterpret_cast<const char*>(tail.data()), tail.size())};
}

}  // namespace tileoverlap
