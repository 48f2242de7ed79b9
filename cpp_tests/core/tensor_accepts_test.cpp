// What check_tensor takes, and the view it makes of it.

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "support/host_tensor.hpp"
#include "tileoverlap/core/tensor.hpp"

namespace tileoverlap {
namespace {

using testing::HostTensor;

TensorSpec rows_of(int64_t width) {
  return {
      .argument = "x", .dtypes = {DType::kFloat32, DType::kBFloat16}, .shape = {-1, width}, .shape_names = "[T, K]"};
}

TEST(CheckTensor, NullStridesMeanCompactRowMajor) {
  const HostTensor x(DType::kFloat32, {4, 256});
  const TensorView view = check_tensor(x.arg(), rows_of(256));
  EXPECT_EQ(view.strides[0], 256);
  EXPECT_EQ(view.strides[1], 1);
  EXPECT_EQ(view.elements, 1024);
  EXPECT_EQ(view.ndim, 2);
  EXPECT_EQ(view.shape[0], 4);
  EXPECT_EQ(view.dtype, DType::kFloat32);
  EXPECT_EQ(view.data, x.data());
  EXPECT_EQ(view.row<float>(3), reinterpret_cast<const float*>(x.data()) + 768);
}

TEST(CheckTensor, NullStridesOfThreeDimensionsStepOverWholeMatrices) {
  const HostTensor weights(DType::kBFloat16, {2, 3, 8});
  const TensorView view = check_tensor(
      weights.arg(),
      {.argument = "weights", .dtypes = {DType::kBFloat16}, .shape = {2, 3, 8}, .shape_names = "[E, N, K]"});
  EXPECT_EQ(view.strides[0], 24);
  EXPECT_EQ(view.strides[1], 8);
  EXPECT_EQ(view.strides[2], 1);
}

TEST(CheckTensor, ColumnsOfAWiderTensorKeepItsRowStride) {
  HostTensor wide(DType::kFloat32, {4, 8});
  std::array<int64_t, 2> shape{4, 2}, strides{8, 1};
  wide.dl().shape = shape.data();
  wide.dl().strides = strides.data();
  const TensorView view = check_tensor(wide.arg(), rows_of(2));
  EXPECT_EQ(view.strides[0], 8);
  EXPECT_EQ(view.elements, 8);
}

TEST(CheckTensor, ByteOffsetIsAddedToTheData) {
  HostTensor pool(DType::kFloat32, {1024});
  std::array<int64_t, 2> shape{4, 64};
  pool.dl().shape = shape.data();
  pool.dl().ndim = 2;
  pool.dl().byte_offset = 512;
  EXPECT_EQ(check_tensor(pool.arg(), rows_of(64)).data, pool.data() + 512);
}

TEST(CheckTensor, EmptyTensorMayHaveNullDataAndSaysItsOwnDevice) {
  HostTensor x(DType::kFloat32, {0, 1024});
  std::array<int64_t, 2> strides{1024, 1};
  x.dl().strides = strides.data();
  ASSERT_EQ(x.dl().data, nullptr);
  EXPECT_EQ(check_tensor(x.arg(), rows_of(1024)).elements, 0);
  x.dl().device = {kDLCUDA, 0};
  TensorSpec on_gpu = rows_of(1024);
  on_gpu.device = {kDLCUDA, 0};
  EXPECT_EQ(check_tensor(x.arg(), on_gpu).elements, 0);  // nobody asks a driver who owns a null pointer
}

TEST(CheckTensor, EmptyTensorMayHaveAnyStrides) {
  HostTensor x(DType::kFloat32, {0, 512});
  for (std::array<int64_t, 2> strides : {std::array<int64_t, 2>{512, 1}, {1, 1}, {0, 0}, {-1, 7}}) {
    x.dl().strides = strides.data();
    EXPECT_EQ(check_tensor(x.arg(), rows_of(512)).elements, 0) << strides[0] << ", " << strides[1];
  }
}

TEST(CheckTensor, EmptyTensorNeedsNoAlignment) {
  HostTensor x(DType::kFloat32, {0, 512});
  x.dl().byte_offset = 3;
  EXPECT_EQ(check_tensor(x.arg(), rows_of(512)).elements, 0);
}

TEST(CheckTensor, AnEmptyTensorMayHaveHugeOtherSizes) {
  HostTensor x(DType::kFloat32, {0, 1});
  std::array<int64_t, 2> shape{0, std::numeric_limits<int64_t>::max()};
  x.dl().shape = shape.data();
  EXPECT_EQ(check_tensor(x.arg(), rows_of(-1)).elements, 0);
}

TEST(CheckTensor, TheStrideOfASingleRowIsNeverUsed) {
  HostTensor x(DType::kFloat32, {1, 16});
  std::array<int64_t, 2> strides{0, 1};
  x.dl().strides = strides.data();
  EXPECT_EQ(check_tensor(x.arg(), rows_of(16)).elements, 16);
}

TEST(CheckTensor, TheStrideOfASingleColumnIsNeverUsed) {
  HostTensor x(DType::kFloat32, {4, 1});
  std::array<int64_t, 2> strides{1, 17};
  x.dl().strides = strides.data();
  const TensorView view = check_tensor(x.arg(), rows_of(1));
  EXPECT_EQ(view.strides[0], 1);
  EXPECT_EQ(view.strides[1], 1);  // documented: the last stride of a view is 1
}

TEST(CheckTensor, ReadOnlyInputIsAccepted) {
  const HostTensor x(DType::kFloat32, {4, 16});
  EXPECT_EQ(check_tensor(x.arg(true), rows_of(16)).elements, 64);
}

TEST(CheckTensor, AcceptsEachListedDTypeAndReportsIt) {
  const HostTensor single(DType::kFloat32, {2, 4}), brain(DType::kBFloat16, {2, 4});
  EXPECT_EQ(check_tensor(single.arg(), rows_of(4)).dtype, DType::kFloat32);
  EXPECT_EQ(check_tensor(brain.arg(), rows_of(4)).dtype, DType::kBFloat16);
}

TEST(CheckTensor, SizesPassTwoToThe31) {
  // Only described, never touched: 2^20 rows of 2^13 elements with a row stride of 2^14.
  HostTensor x(DType::kBFloat16, {1, 8});
  std::array<int64_t, 2> shape{1 << 20, 1 << 13}, strides{1 << 14, 1};
  x.dl().shape = shape.data();
  x.dl().strides = strides.data();
  const TensorView view = check_tensor(x.arg(), rows_of(1 << 13));
  EXPECT_EQ(view.elements, int64_t{1} << 33);
  EXPECT_EQ(view.row<BFloat16>(1 << 19) - view.row<BFloat16>(0), int64_t{1} << 33);
}

TEST(TensorArg, TakesReadOnlyFromTheManagedTensorsFlags) {
  HostTensor x(DType::kFloat32, {2, 4});
  DLManagedTensorVersioned managed{};
  managed.dl_tensor = x.dl();
  EXPECT_FALSE(TensorArg(&managed).read_only);
  managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  EXPECT_TRUE(TensorArg(&managed).read_only);
  managed.flags = DLPACK_FLAG_BITMASK_IS_COPIED;
  EXPECT_FALSE(TensorArg(&managed).read_only);
  EXPECT_TRUE(static_cast<bool>(TensorArg(&managed)));
  EXPECT_FALSE(static_cast<bool>(TensorArg()));
}

}  // namespace
}  // namespace tileoverlap
