#pragma once
// Host data on its way to the device: a few pinned buffers in turn, so that a call neither allocates nor, as long as
// the GPU is less than that many uploads behind, waits.

#include <array>
#include <cstddef>

#include "core/cuda_objects.hpp"

namespace tileoverlap {

class UploadRing {
 public:
  static constexpr size_t kSlots = 4;

  UploadRing() = default;
  UploadRing(int32_t device, size_t bytes) {
    for (Slot& slot : slots_) {
      slot.memory = PinnedBytes(device, bytes);
      slot.copied = Event(device);
    }
  }

  // A buffer that no copy reads any more.
  std::byte* next() {
    current_ = (current_ + 1) % kSlots;
    Slot& slot = slots_[current_];
    if (!slot.copied.reached()) cuda_check(cudaEventSynchronize(slot.copied.get()), "waiting for an upload");
    return slot.memory.host();
  }
  // Copies part of that buffer; may be called several times, then done().
  void copy(std::byte* to, size_t offset, size_t bytes, cudaStream_t stream) {
    if (bytes == 0) return;
    cuda_check(cudaMemcpyAsync(to, slots_[current_].memory.host() + offset, bytes, cudaMemcpyHostToDevice, stream),
               "uploading");
  }
  void done(cudaStream_t stream) { slots_[current_].copied.record(stream); }

 private:
  struct Slot {
    PinnedBytes memory;
    Event copied;
  };
  std::array<Slot, kSlots> slots_;
  size_t current_ = 0;
};

}  // namespace tileoverlap
