#pragma once
// What a rank says of a layer call before it starts: its counts, or why it refuses.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace tileoverlap {

struct CallVote {
  std::vector<int32_t> counts;  // this rank's row of the matrix
  std::string refusal;          // not empty: the call is refused

  std::vector<std::byte> encode() const {
    const bool refused = !refusal.empty();
    const auto body = refused ? std::as_bytes(std::span(refusal)) : std::as_bytes(std::span(counts));
    std::vector<std::byte> message(1 + body.size(), std::byte{refused});
    if (!body.empty()) std::memcpy(message.data() + 1, body.data(), body.size());
    return message;
  }

  static CallVote decode(std::span<const std::byte> message) {
    CallVote vote;
    const auto body = message.subspan(1);
    if (message[0] == std::byte{1}) {
      vote.refusal.assign(reinterpret_cast<const char*>(body.data()), body.size());
    } else {
      vote.counts.resize(body.size() / sizeof(int32_t));
      if (!body.empty()) std::memcpy(vote.counts.data(), body.data(), body.size());
    }
    return vote;
  }
};

}  // namespace tileoverlap
