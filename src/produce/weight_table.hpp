#pragma once
// Weights that do not lie in one tensor of even strides: what a kernel needs of each expert's matrix, made once a set
// of weights and kept on the device.

#include <vector>

#include "core/upload_ring.hpp"
#include "produce/gpu_producer.hpp"

namespace tileoverlap {

class WeightTable {
 public:
  WeightTable() = default;
  WeightTable(int32_t device, const GpuProducer& producer, int32_t experts)
      : producer_(&producer),
        table_(device, static_cast<size_t>(experts) * producer.table_entry_bytes()),
        ring_(device, table_.bytes()) {}

  bool holds(const std::vector<const void*>& matrices, int64_t row_stride) const {
    return matrices == matrices_ && row_stride == row_stride_;
  }
  // The device table for these matrices, uploaded on `stream` where they are not those of the call before.
  const void* update(const std::vector<const void*>& matrices, int64_t row_stride, int64_t k, int64_t n,
                     cudaStream_t stream) {
    if (holds(matrices, row_stride)) return table_.data();
    std::byte* entries = ring_.next();
    producer_->encode_table(matrices, row_stride, k, n, entries);
    ring_.copy(table_.data(), 0, table_.bytes(), stream);
    ring_.done(stream);
    matrices_ = matrices;
    row_stride_ = row_stride;
    return table_.data();
  }

 private:
  const GpuProducer* producer_ = nullptr;
  DeviceBytes table_;
  UploadRing ring_;
  std::vector<const void*> matrices_;
  int64_t row_stride_ = 0;
};

}  // namespace tileoverlap
