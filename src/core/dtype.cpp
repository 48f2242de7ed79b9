#include "tileoverlap/core/dtype.hpp"

#include "tileoverlap/core/error.hpp"

namespace tileoverlap {

const char* name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
  }
  return "?";
}

DType parse_dtype(const std::string& text) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt32, DType::kInt64}) {
    if (text == name(dtype)) return dtype;
  }
  throw InvalidArgument("dtype must be float32, bfloat16, float16, int32 or int64, got '" + text + "'");
}

}  // namespace tileoverlap
