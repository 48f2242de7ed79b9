#pragma once
// Tensors at the edge of the library: DLPack in, one checked view out.

#include <dlpack/dlpack.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "tileoverlap/core/api.hpp"
#include "tileoverlap/core/dtype.hpp"

namespace tileoverlap {

// A tensor as the caller hands it in. Borrows: the DLTensor itself is read at once, the memory it names must stay
// valid and unchanged until the call has completed (Session::synchronize, or the stream's work for GPU executors).
struct TensorArg {
  const DLTensor* tensor = nullptr;
  bool read_only = false;

  TensorArg() = default;
  TensorArg(const DLTensor* borrowed, bool is_read_only = false)  // NOLINT: implicit on purpose
      : tensor(borrowed), read_only(is_read_only) {}
  TensorArg(const DLManagedTensorVersioned* managed)  // NOLINT: implicit on purpose
      : tensor(&managed->dl_tensor), read_only((managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0) {}
  explicit operator bool() const { return tensor != nullptr; }
};

// What one argument must look like. `shape` entries of -1 accept any size >= 0.
struct TensorSpec {
  const char* argument;  // the name used in messages
  std::vector<DType> dtypes;
  std::vector<int64_t> shape;
  const char* shape_names;  // e.g. "[rows, K]"
  bool writable = false;
  DLDevice device = {kDLCPU, 0};  // for host memory the number does not matter
  int64_t row_bytes = 0;          // > 0: rows start at multiples of this many bytes, as vector accesses ask
};

// A tensor that passed check_tensor. `data` includes the byte offset and may be null when `elements` is 0.
// Strides are in elements; the last one is 1 (any value when the tensor is empty).
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  int32_t ndim = 0;
  int64_t shape[3] = {1, 1, 1};
  int64_t strides[3] = {0, 0, 0};
  int64_t elements = 0;

  template <class T>
  T* row(int64_t i) const {
    return reinterpret_cast<T*>(data) + i * strides[0];
  }
};

// Checks dtype, device, shape, strides, byte offset and alignment, read-only memory and null data, in this order, and
// throws DTypeError or InvalidArgument naming the argument, what it was and what was needed.
//  - Rows must be contiguous (last stride 1); outer strides may be larger than the rows they step over, never
//    smaller, zero or negative, so that no two elements share memory.
//  - A tensor without elements may have null data and any strides.
//  - strides == nullptr means contiguous row-major.
TILEOVERLAP_API TensorView check_tensor(const TensorArg& argument, const TensorSpec& spec);

TILEOVERLAP_API std::string describe(const DLTensor& tensor);  // "float32 [4, 256] on cpu:0"

TILEOVERLAP_API DLDataType dl_dtype(DType dtype);

// Memory ranges of two checked tensors, for refusing an output that overlaps an input.
TILEOVERLAP_API bool overlaps(const TensorView& a, const TensorView& b);

}  // namespace tileoverlap
