#pragma once
// A tensor on loan from Python.

#include <dlpack/dlpack.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tileoverlap/core/tensor.hpp"

namespace tileoverlap::python {

namespace nb = nanobind;

// Keeps the producer's memory alive for as long as it lives; its destructor gives the memory back. Holds the GIL
// whenever it is made or destroyed, as any Python object does.
class Tensor {
 public:
  // Takes over a DLPack capsule, "dltensor" or "dltensor_versioned", and marks it as used. `argument` is the name
  // for messages. Errors: InvalidArgument for any other object and for a major version other than 1.
  static Tensor from_capsule(nb::handle capsule, const std::string& argument);
  // Memory that `owner` keeps alive. Strides in elements.
  static Tensor from_memory(uintptr_t address, std::vector<int64_t> shape, std::vector<int64_t> strides,
                            DLDataType dtype, bool read_only, nb::object owner);

  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(Tensor&&) = delete;

  const DLTensor& dl_tensor() const { return *tensor_; }
  bool read_only() const { return (flags_ & DLPACK_FLAG_BITMASK_READ_ONLY) != 0; }
  bool is_copy() const { return (flags_ & DLPACK_FLAG_BITMASK_IS_COPIED) != 0; }
  TensorArg arg() const { return TensorArg(tensor_, read_only()); }

 private:
  Tensor() = default;

  const DLTensor* tensor_ = nullptr;
  uint64_t flags_ = 0;
  std::shared_ptr<void> loan_;  // what tensor_ lies in; its deleter is the producer's
};

inline TensorArg arg_of(const Tensor* tensor) { return tensor == nullptr ? TensorArg() : tensor->arg(); }

}  // namespace tileoverlap::python
