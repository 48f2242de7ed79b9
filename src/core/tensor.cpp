#include "tileoverlap/core/tensor.hpp"

#include <algorithm>
#include <limits>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

std::string dtype_text(DLDataType dtype) {
  static constexpr const char* kNames[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  std::string result = dtype.code < std::size(kNames) ? kNames[dtype.code] : text("code", int{dtype.code}, "_");
  if (dtype.code != kDLBool || dtype.bits != 8) result += std::to_string(dtype.bits);
  if (dtype.lanes != 1) result += text(" with ", dtype.lanes, " lanes");
  return result;
}

std::string device_text(DLDevice device) {
  switch (static_cast<int>(device.device_type)) {
    case kDLCPU:
      return text("cpu:", device.device_id);
    case kDLCUDA:
      return text("cuda:", device.device_id);
    case kDLCUDAHost:
      return "pinned host memory";
    default:
      return text("device type ", static_cast<int>(device.device_type), ":", device.device_id);
  }
}

bool matches(DLDataType dtype, DType wanted) {
  const DLDataType needed = dl_dtype(wanted);
  return dtype.code == needed.code && dtype.bits == needed.bits && dtype.lanes == needed.lanes;
}

DType check_dtype(const DLTensor& tensor, const TensorSpec& spec) {
  std::string accepted;
  for (const DType dtype : spec.dtypes) {
    if (matches(tensor.dtype, dtype)) return dtype;
    accepted += text(accepted.empty() ? "" : " or ", name(dtype));
  }
  throw DTypeError(text(spec.argument, " must be ", accepted, ", got ", dtype_text(tensor.dtype)));
}

void check_device(const DLTensor& tensor, const TensorSpec& spec) {
  const DLDevice is = tensor.device, must = spec.device;
  if (is.device_type == must.device_type && (must.device_type == kDLCPU || is.device_id == must.device_id)) return;
  throw InvalidArgument(text(spec.argument, " must be on ", must.device_type == kDLCPU ? "the cpu" : device_text(must),
                             ", got ", device_text(is)));
}

// "[any, 256]" of a spec whose sizes may be -1.
std::string spec_text(const TensorSpec& spec) {
  std::string result;
  for (const int64_t size : spec.shape) {
    result += text(result.empty() ? "" : ", ", size == -1 ? "any" : std::to_string(size));
  }
  return "[" + result + "]";
}

// Bytes from the first element to behind the last one; throws where they do not fit 63 bits, since an offset that
// wraps around makes rows share memory.
int64_t extent_bytes(const TensorView& view, const TensorSpec& spec) {
  int64_t last = 0, bytes = 0;
  bool overflow = false;
  for (int32_t i = 0; i < view.ndim; ++i) {
    int64_t step = 0;
    overflow |= __builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  overflow |= __builtin_mul_overflow(last, size_of(view.dtype), &bytes);
  overflow |= __builtin_add_overflow(bytes, size_of(view.dtype), &bytes);
  if (overflow) {
    throw InvalidArgument(text(spec.argument, " ", shape_text(view.shape, view.ndim), " with strides ",
                               shape_text(view.strides, view.ndim), " spans more than 2^63 bytes"));
  }
  return bytes;
}

void check_shape(const DLTensor& tensor, const TensorSpec& spec) {
  const auto wanted = static_cast<int32_t>(spec.shape.size());
  bool same = tensor.ndim == wanted;
  for (int32_t i = 0; same && i < wanted; ++i) {
    if (tensor.shape[i] < 0) {
      throw InvalidArgument(text(spec.argument, " has a negative size in ", shape_text(tensor.shape, tensor.ndim)));
    }
    same = spec.shape[static_cast<size_t>(i)] == -1 || spec.shape[static_cast<size_t>(i)] == tensor.shape[i];
  }
  if (!same) {
    throw InvalidArgument(text(spec.argument, " must be ", spec.shape_names, " = ", spec_text(spec), ", got ",
                               shape_text(tensor.shape, tensor.ndim)));
  }
}

int64_t count_elements(const DLTensor& tensor, const TensorSpec& spec, int64_t element_bytes) {
  int64_t elements = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 0) return 0;
  }
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (elements > std::numeric_limits<int64_t>::max() / element_bytes / tensor.shape[i]) {
      throw InvalidArgument(
          text(spec.argument, " ", shape_text(tensor.shape, tensor.ndim), " has more than 2^63 bytes"));
    }
    elements *= tensor.shape[i];
  }
  return elements;
}

// Fills view.strides and refuses what would let two elements share memory or rows be scattered.
void check_strides(const DLTensor& tensor, const TensorSpec& spec, TensorView& view) {
  int64_t packed = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    const int64_t stride = tensor.strides == nullptr ? packed : tensor.strides[i];
    // The stride of a dimension of size 1 is never used; frameworks put anything there.
    const bool used = tensor.shape[i] > 1;
    const bool last = i == tensor.ndim - 1;
    if (used && (last ? stride != 1 : stride < packed)) {
      throw InvalidArgument(text(spec.argument,
                                 " must have contiguous rows that do not overlap (last stride 1, stride ", i,
                                 " at least ", packed, "), got strides ", shape_text(tensor.strides, tensor.ndim),
                                 " for ", shape_text(tensor.shape, tensor.ndim)));
    }
    view.strides[i] = used ? stride : packed;
    if (__builtin_mul_overflow(view.strides[i], tensor.shape[i], &packed)) {
      packed = std::numeric_limits<int64_t>::max();  // extent_bytes says so
    }
  }
}

void check_row_starts(const TensorView& view, const TensorSpec& spec) {
  if (spec.row_bytes == 0) return;
  bool aligned = reinterpret_cast<uintptr_t>(view.data) % static_cast<uint64_t>(spec.row_bytes) == 0;
  for (int32_t i = 0; i + 1 < view.ndim; ++i) {
    aligned &= view.shape[i] == 1 || view.strides[i] * size_of(view.dtype) % spec.row_bytes == 0;
  }
  if (!aligned) {
    throw InvalidArgument(text(spec.argument, " must have rows that start at multiples of ", spec.row_bytes,
                               " bytes, got address ", static_cast<const void*>(view.data), " and strides ",
                               shape_text(view.strides, view.ndim), " of ", size_of(view.dtype), "-byte elements"));
  }
}

}  // namespace

DLDataType dl_dtype(DType dtype) {
  const auto code = [&] {
    switch (dtype) {
      case DType::kBFloat16:
        return kDLBfloat;
      case DType::kInt32:
      case DType::kInt64:
        return kDLInt;
      default:
        return kDLFloat;
    }
  }();
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * size_of(dtype)), 1};
}

std::string describe(const DLTensor& tensor) {
  return text(dtype_text(tensor.dtype), " ", shape_text(tensor.shape, tensor.ndim), " on ", device_text(tensor.device));
}

TensorView check_tensor(const TensorArg& argument, const TensorSpec& spec) {
  if (argument.tensor == nullptr) {
    throw InvalidArgument(text(spec.argument, " is missing: needed ", spec.shape_names));
  }
  const DLTensor& tensor = *argument.tensor;
  TensorView view;
  view.dtype = check_dtype(tensor, spec);
  check_device(tensor, spec);
  check_shape(tensor, spec);
  const int64_t element_bytes = size_of(view.dtype);
  view.ndim = tensor.ndim;
  std::copy_n(tensor.shape, tensor.ndim, view.shape);
  view.elements = count_elements(tensor, spec, element_bytes);
  if (view.elements > 0) {
    check_strides(tensor, spec, view);
    extent_bytes(view, spec);
    // As integers: arithmetic on a null pointer is not defined.
    const uintptr_t address = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
    if (address % static_cast<uint64_t>(element_bytes) != 0) {
      throw InvalidArgument(text(spec.argument, " must start at a multiple of its element size of ", element_bytes,
                                 " bytes, got byte_offset ", tensor.byte_offset, " from address ", tensor.data));
    }
    view.data = reinterpret_cast<std::byte*>(address);
    check_row_starts(view, spec);
  }
  if (argument.read_only && spec.writable) {
    throw InvalidArgument(text(spec.argument, " is written to, but its memory is read-only"));
  }
  if (view.elements > 0 && tensor.data == nullptr) {
    throw InvalidArgument(text(spec.argument, " ", shape_text(tensor.shape, tensor.ndim), " has null data"));
  }
  return view;
}

bool overlaps(const TensorView& a, const TensorView& b) {
  if (a.elements == 0 || b.elements == 0) return false;
  const auto end = [](const TensorView& view) {
    int64_t last = 0;
    for (int32_t i = 0; i < view.ndim; ++i) last += (view.shape[i] - 1) * view.strides[i];
    return view.data + (last + 1) * size_of(view.dtype);
  };
  return a.data < end(b) && b.data < end(a);
}

}  // namespace tileoverlap
