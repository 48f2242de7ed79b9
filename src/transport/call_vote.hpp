#pragma once
// What a rank says at the head of a collective call: its counts, or why it refuses.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

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

// The votes of all ranks, row by row. Throws CallRefused for the first rank that refuses.
inline std::vector<int32_t> collect_counts(const std::vector<std::vector<std::byte>>& messages, int32_t me,
                                           int32_t experts) {
  std::vector<int32_t> counts;
  for (size_t peer = 0; peer < messages.size(); ++peer) {
    const CallVote vote = CallVote::decode(messages[peer]);
    if (!vote.refusal.empty()) {
      throw CallRefused(text("rank ", peer, " refused the call: ", vote.refusal));
    }
    if (static_cast<int32_t>(vote.counts.size()) != experts) {
      throw InvalidArgument(
          text("rank ", peer, " counts ", vote.counts.size(), " experts, rank ", me, " counts ", experts));
    }
    counts.insert(counts.end(), vote.counts.begin(), vote.counts.end());
  }
  return counts;
}

}  // namespace tileoverlap
