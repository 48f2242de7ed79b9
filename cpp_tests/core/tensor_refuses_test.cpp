// What check_tensor refuses, and that its message names the argument, what it was and what was needed.

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "support/host_tensor.hpp"
#include "support/messages.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/tensor.hpp"

namespace tileoverlap {
namespace {

using testing::HostTensor;
using testing::message_of;
using testing::Says;

TensorSpec rows_of(int64_t width) {
  return {
      .argument = "rows", .dtypes = {DType::kFloat32, DType::kBFloat16}, .shape = {-1, width}, .shape_names = "[T, K]"};
}

template <class ErrorType = InvalidArgument>
std::string refusal(const TensorArg& x, const TensorSpec& spec) {
  return message_of<ErrorType>([&] { check_tensor(x, spec); });
}

TEST(CheckTensorRefuses, AMissingTensorByItsName) {
  EXPECT_THAT(refusal({}, rows_of(16)), Says("rows", "missing", "[T, K]"));
}

struct ForeignDType {
  DLDataType dtype;
  const char* said;
};
class ForeignDTypes : public ::testing::TestWithParam<ForeignDType> {};

TEST_P(ForeignDTypes, AreNamedBesideTheSupportedOnes) {
  HostTensor x(DType::kFloat32, {4, 16});
  x.dl().dtype = GetParam().dtype;
  EXPECT_THAT(refusal<DTypeError>(x.arg(), rows_of(16)), Says("rows", GetParam().said, "float32", "bfloat16"));
}
INSTANTIATE_TEST_SUITE_P(
    CheckTensorRefuses, ForeignDTypes,
    ::testing::Values(ForeignDType{{kDLFloat, 16, 1}, "float16"}, ForeignDType{{kDLFloat, 64, 1}, "float64"},
                      ForeignDType{{kDLInt, 8, 1}, "int8"}, ForeignDType{{kDLInt, 32, 1}, "int32"},
                      ForeignDType{{kDLUInt, 32, 1}, "uint32"}, ForeignDType{{kDLComplex, 64, 1}, "complex64"},
                      ForeignDType{{kDLBool, 8, 1}, "bool"}, ForeignDType{{kDLFloat, 32, 4}, "4 lanes"},
                      ForeignDType{{kDLFloat, 32, 0}, "0 lanes"}, ForeignDType{{kDLBfloat, 32, 1}, "bfloat32"},
                      ForeignDType{{kDLFloat8_e4m3fn, 8, 1}, "code10_8"}, ForeignDType{{250, 8, 1}, "code250_8"}));

TEST(CheckTensorRefuses, AnotherDeviceByBothNames) {
  HostTensor x(DType::kFloat32, {4, 16});
  x.dl().device = {kDLCUDA, 3};
  EXPECT_THAT(refusal(x.arg(), rows_of(16)), Says("rows", "cuda:3", "cpu"));
  x.dl().device = {kDLCPU, 0};
  TensorSpec on_gpu = rows_of(16);
  on_gpu.device = {kDLCUDA, 3};
  EXPECT_THAT(refusal(x.arg(), on_gpu), Says("rows", "cpu:0", "cuda"));
}

TEST(CheckTensorRefuses, AnotherRankWithBothShapes) {
  const HostTensor flat(DType::kFloat32, {64}), deep(DType::kFloat32, {2, 2, 16});
  EXPECT_THAT(refusal(flat.arg(), rows_of(16)), Says("rows", "[T, K]", "[any, 16]", "[64]"));
  EXPECT_THAT(refusal(deep.arg(), rows_of(16)), Says("rows", "[any, 16]", "[2, 2, 16]"));
}

TEST(CheckTensorRefuses, AScalarAndATensorOfManyDimensions) {
  HostTensor x(DType::kFloat32, {16});
  x.dl().ndim = 0;
  EXPECT_THAT(refusal(x.arg(), rows_of(16)), Says("rows", "[any, 16]", "[]"));
  const HostTensor many(DType::kFloat32, {1, 1, 1, 1, 4, 4});
  EXPECT_THAT(refusal(many.arg(), rows_of(4)), Says("rows", "[1, 1, 1, 1, 4, 4]"));
}

TEST(CheckTensorRefuses, AnotherSizeWithBothShapes) {
  const HostTensor x(DType::kFloat32, {4, 24});
  EXPECT_THAT(refusal(x.arg(), rows_of(16)), Says("rows", "[T, K]", "[any, 16]", "[4, 24]"));
}

TEST(CheckTensorRefuses, ANegativeSize) {
  HostTensor x(DType::kFloat32, {4, 16});
  std::array<int64_t, 2> shape{-3, 16};
  x.dl().shape = shape.data();
  EXPECT_THAT(refusal(x.arg(), rows_of(16)), Says("rows", "negative", "-3"));
}

TEST(CheckTensorRefuses, MoreBytesThanFitIn63Bits) {
  HostTensor x(DType::kFloat32, {1, 1});
  std::array<int64_t, 2> shape{int64_t{1} << 32, int64_t{1} << 30};
  x.dl().shape = shape.data();
  EXPECT_THAT(refusal(x.arg(), rows_of(-1)), Says("rows", "[4294967296, 1073741824]", "2^63"));
}

TEST(CheckTensorRefuses, AStrideThatLeadsPast63Bits) {
  HostTensor x(DType::kFloat32, {4, 16});
  std::array<int64_t, 2> strides{std::numeric_limits<int64_t>::max() / 2, 1};
  x.dl().strides = strides.data();
  EXPECT_THAT(refusal(x.arg(), rows_of(16)), Says("rows", "2^63"));
}

struct BadStrides {
  std::vector<int64_t> shape, strides;
};
class ScatteredRows : public ::testing::TestWithParam<BadStrides> {};

TEST_P(ScatteredRows, AreRefusedWithTheirStrides) {
  auto [shape, strides] = GetParam();
  HostTensor x(DType::kFloat32, {4096});
  x.dl().ndim = static_cast<int32_t>(shape.size());
  x.dl().shape = shape.data();
  x.dl().strides = strides.data();
  std::string said = "[";
  for (size_t i = 0; i < strides.size(); ++i) said += (i > 0 ? ", " : "") + std::to_string(strides[i]);
  const std::vector<int64_t> any(shape.size(), -1);
  EXPECT_THAT(
      refusal(x.arg(), {.argument = "weights", .dtypes = {DType::kFloat32}, .shape = any, .shape_names = "[E, N, K]"}),
      Says("weights", said + "]", "contiguous"));
}
INSTANTIATE_TEST_SUITE_P(CheckTensorRefuses, ScatteredRows,
                         ::testing::Values(BadStrides{{16, 4}, {1, 16}},           // transposed
                                           BadStrides{{4, 16}, {0, 1}},            // one row seen four times
                                           BadStrides{{4, 16}, {16, 0}},           // one element seen everywhere
                                           BadStrides{{4, 16}, {8, 1}},            // rows that overlap by half
                                           BadStrides{{4, 16}, {-16, 1}},          // reversed rows
                                           BadStrides{{4, 16}, {16, -1}},          // reversed columns
                                           BadStrides{{4, 16}, {32, 2}},           // every second column
                                           BadStrides{{2, 4, 16}, {32, 16, 1}},    // matrices that overlap
                                           BadStrides{{2, 4, 16}, {16, 32, 1}},    // outer dimensions swapped
                                           BadStrides{{2, 1, 16}, {8, 999, 1}}));  // a size of 1 hides nothing

TEST(CheckTensorRefuses, AMisalignedByteOffsetWithTheElementSize) {
  HostTensor x(DType::kFloat32, {1024});
  std::array<int64_t, 2> shape{4, 16};
  x.dl().ndim = 2;
  x.dl().shape = shape.data();
  x.dl().byte_offset = 3;
  EXPECT_THAT(refusal(x.arg(), rows_of(16)), Says("rows", "byte_offset 3", "4 bytes"));
}

TEST(CheckTensorRefuses, AMisalignedPointerEvenWithoutAnOffset) {
  HostTensor x(DType::kBFloat16, {1024});
  std::array<int64_t, 2> shape{4, 16};
  x.dl().ndim = 2;
  x.dl().shape = shape.data();
  x.dl().data = x.data() + 1;
  EXPECT_THAT(refusal(x.arg(), rows_of(16)), Says("rows", "2 bytes"));
}

TEST(CheckTensorRefuses, ReadOnlyMemoryForAnOutput) {
  const HostTensor out(DType::kFloat32, {4, 16});
  TensorSpec spec = rows_of(16);
  spec.argument = "out";
  spec.writable = true;
  EXPECT_THAT(refusal(out.arg(true), spec), Says("out", "read-only"));
  EXPECT_EQ(check_tensor(out.arg(false), spec).elements, 64);
}

TEST(CheckTensorRefuses, NullDataOfATensorThatHasElements) {
  HostTensor x(DType::kFloat32, {1, 1024});
  x.dl().data = nullptr;
  EXPECT_THAT(refusal(x.arg(), rows_of(1024)), Says("rows", "[1, 1024]", "null"));
}

TEST(CheckTensorRefuses, NullDataEvenWithAByteOffset) {
  HostTensor x(DType::kFloat32, {1, 1024});
  x.dl().data = nullptr;
  x.dl().byte_offset = 4096;
  EXPECT_THAT(refusal(x.arg(), rows_of(1024)), Says("rows", "null"));
}

TEST(CheckTensorRefuses, InTheDocumentedOrder) {
  HostTensor x(DType::kFloat32, {4, 16});
  TensorSpec spec = rows_of(8);
  spec.writable = true;
  x.dl().dtype = {kDLInt, 8, 1};
  x.dl().device = {kDLCUDA, 0};
  x.dl().byte_offset = 3;
  refusal<DTypeError>(x.arg(true), spec);  // dtype before everything
  x.dl().dtype = {kDLFloat, 32, 1};
  EXPECT_THAT(refusal(x.arg(true), spec), Says("cuda:0"));  // then device
  x.dl().device = {kDLCPU, 0};
  EXPECT_THAT(refusal(x.arg(true), spec), Says("[4, 16]"));  // then shape
  std::array<int64_t, 2> strides{0, 1};
  x.dl().strides = strides.data();
  x.dl().data = nullptr;
  spec.shape = {-1, 16};
  EXPECT_THAT(refusal(x.arg(true), spec), Says("[0, 1]"));  // then strides
  x.dl().strides = nullptr;
  EXPECT_THAT(refusal(x.arg(true), spec), Says("byte_offset 3"));  // then byte offset and alignment
  x.dl().byte_offset = 0;
  EXPECT_THAT(refusal(x.arg(true), spec), Says("read-only"));  // then read-only memory
  EXPECT_THAT(refusal(x.arg(), spec), Says("null"));           // then null data
}

TEST(TensorDescription, SaysDTypeShapeAndDevice) {
  HostTensor x(DType::kFloat32, {4, 256});
  EXPECT_EQ(describe(x.dl()), "float32 [4, 256] on cpu:0");
  x.dl().device = {kDLCUDA, 1};
  x.dl().dtype = {kDLBfloat, 16, 1};
  EXPECT_EQ(describe(x.dl()), "bfloat16 [4, 256] on cuda:1");
}

}  // namespace
}  // namespace tileoverlap
