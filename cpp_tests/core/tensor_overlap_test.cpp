// Whether two tensors share memory.

#include <gtest/gtest.h>

#include <array>

#include "support/host_tensor.hpp"
#include "tileoverlap/core/tensor.hpp"

namespace tileoverlap {
namespace {

using testing::HostTensor;

// Rows [first, first + count) of `pool`, `width` columns wide.
TensorView part(HostTensor& pool, int64_t first, int64_t count, int64_t width) {
  DLTensor tensor = pool.dl();
  std::array<int64_t, 2> shape{count, width}, strides{pool.size(1), 1};
  tensor.shape = shape.data();
  tensor.strides = strides.data();
  tensor.byte_offset = static_cast<uint64_t>(first * pool.size(1) * 4);
  return check_tensor(&tensor,
                      {.argument = "x", .dtypes = {DType::kFloat32}, .shape = {-1, -1}, .shape_names = "[T, K]"});
}

TEST(Overlap, OfATensorWithItselfAndWithAPartOfIt) {
  HostTensor pool(DType::kFloat32, {8, 16});
  EXPECT_TRUE(overlaps(part(pool, 0, 8, 16), part(pool, 0, 8, 16)));
  EXPECT_TRUE(overlaps(part(pool, 0, 8, 16), part(pool, 3, 1, 16)));
  EXPECT_TRUE(overlaps(part(pool, 3, 1, 16), part(pool, 0, 8, 16)));
  EXPECT_TRUE(overlaps(part(pool, 0, 4, 16), part(pool, 3, 4, 16)));
}

TEST(Overlap, NotOfNeighbours) {
  HostTensor pool(DType::kFloat32, {8, 16});
  EXPECT_FALSE(overlaps(part(pool, 0, 4, 16), part(pool, 4, 4, 16)));
  EXPECT_FALSE(overlaps(part(pool, 4, 4, 16), part(pool, 0, 4, 16)));
}

TEST(Overlap, EndsAtTheLastElementAndNotAtTheRowStride) {
  HostTensor pool(DType::kFloat32, {8, 16});
  const TensorView left = part(pool, 0, 2, 4);
  TensorView behind = part(pool, 1, 1, 4);
  EXPECT_TRUE(overlaps(left, behind));
  behind.data += 4 * 4;  // columns 4..7 of row 1, right behind the last element of `left`
  EXPECT_FALSE(overlaps(left, behind));
}

TEST(Overlap, NeverOfAnEmptyTensor) {
  HostTensor pool(DType::kFloat32, {8, 16});
  EXPECT_FALSE(overlaps(part(pool, 2, 0, 16), part(pool, 0, 8, 16)));
  EXPECT_FALSE(overlaps(part(pool, 0, 8, 16), part(pool, 2, 0, 16)));
}

}  // namespace
}  // namespace tileoverlap
