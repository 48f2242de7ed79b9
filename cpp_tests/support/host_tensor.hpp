#pragma once
// A DLTensor in host memory that owns what it points to.

#include <dlpack/dlpack.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "tileoverlap/core/dtype.hpp"
#include "tileoverlap/core/tensor.hpp"

namespace tileoverlap::testing {

inline DLDataType dl_type(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::kBFloat16:
      return {kDLBfloat, bits, 1};
    case DType::kInt32:
    case DType::kInt64:
      return {kDLInt, bits, 1};
    default:
      return {kDLFloat, bits, 1};
  }
}

// Row-major, filled with zeros. The DLTensor may be changed through dl() to describe the memory otherwise.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, std::vector<int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {
    elements_ = 1;
    for (const int64_t size : shape_) elements_ *= size;
    memory_.resize(static_cast<size_t>(elements_ * size_of(dtype)));
    dl_ = {.data = memory_.empty() ? nullptr : memory_.data(),
           .device = {kDLCPU, 0},
           .ndim = static_cast<int32_t>(shape_.size()),
           .dtype = dl_type(dtype),
           .shape = shape_.data(),
           .strides = nullptr,
           .byte_offset = 0};
  }
  template <class T>
  HostTensor(DType dtype, std::vector<int64_t> shape, std::initializer_list<T> values)
      : HostTensor(dtype, std::move(shape)) {
    int64_t i = 0;
    for (const T value : values) put(i++, value);
  }

  HostTensor(HostTensor&&) = default;  // vectors keep their memory when they move, so dl_ stays right
  HostTensor& operator=(HostTensor&&) = default;
  HostTensor(const HostTensor&) = delete;
  HostTensor& operator=(const HostTensor&) = delete;

  HostTensor clone() const {
    HostTensor copy(dtype_, shape_);
    copy.memory_ = memory_;
    copy.dl_.data = copy.memory_.empty() ? nullptr : copy.memory_.data();
    return copy;
  }

  // Another number of rows (first dimension), in the memory that is there where it is enough.
  void set_rows(int64_t rows) {
    shape_[0] = rows;
    elements_ = 1;
    for (const int64_t size : shape_) elements_ *= size;
    memory_.resize(static_cast<size_t>(elements_ * size_of(dtype_)));
    dl_.data = memory_.empty() ? nullptr : memory_.data();
  }

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size(size_t dimension) const { return shape_[dimension]; }
  int64_t elements() const { return elements_; }
  size_t bytes() const { return memory_.size(); }
  const std::byte* data() const { return memory_.data(); }
  std::byte* data() { return memory_.data(); }

  // Element `i` in row-major order; put rounds to the dtype.
  float get(int64_t i) const {
    return with_row_type(dtype_, [&](auto zero) { return to_float(read<decltype(zero)>(i)); });
  }
  int64_t get_id(int64_t i) const { return dtype_ == DType::kInt64 ? read<int64_t>(i) : read<int32_t>(i); }
  template <class Value>
  void put(int64_t i, Value value) {
    if (dtype_ == DType::kInt64) {
      write(i, static_cast<int64_t>(value));
    } else if (dtype_ == DType::kInt32) {
      write(i, static_cast<int32_t>(value));
    } else {
      with_row_type(dtype_, [&](auto zero) { write(i, from_float<decltype(zero)>(static_cast<float>(value))); });
    }
  }

  void fill(float value) {
    for (int64_t i = 0; i < elements_; ++i) put(i, value);
  }
  // All bits set: NaN in every row type, -1 as an id.
  void poison() {
    if (!memory_.empty()) std::memset(memory_.data(), 0xff, memory_.size());
  }

  DLTensor& dl() { return dl_; }
  TensorArg arg(bool read_only = false) const { return TensorArg(&dl_, read_only); }

  friend bool operator==(const HostTensor& a, const HostTensor& b) {  // bit for bit
    return a.dtype_ == b.dtype_ && a.shape_ == b.shape_ && a.memory_ == b.memory_;
  }

 private:
  template <class T>
  T read(int64_t i) const {
    T value;
    std::memcpy(&value, memory_.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
  template <class T>
  void write(int64_t i, T value) {
    std::memcpy(memory_.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }

  DType dtype_ = DType::kFloat32;
  std::vector<int64_t> shape_;
  int64_t elements_ = 0;
  std::vector<std::byte> memory_;
  DLTensor dl_{};
};

}  // namespace tileoverlap::testing
