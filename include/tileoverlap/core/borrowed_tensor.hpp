#pragma once
// The shortest way from a pointer to a TensorArg.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/tensor.hpp"

namespace tileoverlap {

// A contiguous row-major tensor of at most 3 dimensions over memory of the caller's.
class BorrowedTensor {
 public:
  // Errors: InvalidArgument for more dimensions.
  BorrowedTensor(void* data, DType dtype, std::initializer_list<int64_t> shape, DLDevice device = {kDLCPU, 0})
      : BorrowedTensor(data, dtype, shape, device, false) {}
  BorrowedTensor(const void* data, DType dtype, std::initializer_list<int64_t> shape, DLDevice device = {kDLCPU, 0})
      : BorrowedTensor(const_cast<void*>(data), dtype, shape, device, true) {}
  BorrowedTensor(const BorrowedTensor&) = delete;
  BorrowedTensor& operator=(const BorrowedTensor&) = delete;

  // Valid as long as this object; the calls that take it read the shape at once and borrow only the memory.
  operator TensorArg() const { return {&tensor_, read_only_}; }  // NOLINT: implicit on purpose

 private:
  static constexpr int32_t kMaxDims = 3;

  BorrowedTensor(void* data, DType dtype, std::initializer_list<int64_t> shape, DLDevice device, bool read_only)
      : read_only_(read_only) {
    const auto dims = static_cast<int32_t>(shape.size());
    if (dims > kMaxDims)
      throw InvalidArgument("a BorrowedTensor has at most 3 dimensions, got " + std::to_string(dims));
    std::copy(shape.begin(), shape.end(), shape_);
    tensor_ = {data, device, dims, dl_dtype(dtype), shape_, nullptr, 0};
  }

  int64_t shape_[kMaxDims] = {};
  DLTensor tensor_ = {};
  bool read_only_;
};

}  // namespace tileoverlap
