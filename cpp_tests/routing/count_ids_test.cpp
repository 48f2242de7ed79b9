// Reading ids of either width and of any row stride.

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "support/host_tensor.hpp"
#include "support/messages.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/routing/counts.hpp"

namespace tileoverlap {
namespace {

using testing::HostTensor;
using testing::message_of;
using testing::Says;
using Counts = std::vector<int32_t>;

TEST(CountIds, SkipsMinusOne) {
  const HostTensor ids(DType::kInt32, {2, 2}, {0, -1, 3, 2});
  EXPECT_EQ(count_ids(Placement::even(2, 4), 0, ids.arg()), (Counts{1, 0, 1, 1}));
}

TEST(CountIds, CountsAnExpertNamedTwiceByATokenTwice) {
  const HostTensor ids(DType::kInt32, {1, 2}, {3, 3});
  EXPECT_EQ(count_ids(Placement::even(2, 8), 0, ids.arg()), (Counts{0, 0, 0, 2, 0, 0, 0, 0}));
}

TEST(CountIds, ReadsBothWidthsAlike) {
  const HostTensor narrow(DType::kInt32, {2, 2}, {5, 6, 7, 0}), wide(DType::kInt64, {2, 2}, {5, 6, 7, 0});
  const Counts expected{1, 0, 0, 0, 0, 1, 1, 1};
  EXPECT_EQ(count_ids(Placement::even(1, 8), 0, narrow.arg()), expected);
  EXPECT_EQ(count_ids(Placement::even(1, 8), 0, wide.arg()), expected);
}

TEST(CountIds, HonoursTheRowStride) {
  for (const DType dtype : {DType::kInt32, DType::kInt64}) {
    HostTensor wide(dtype, {4, 8});
    wide.fill(77);  // read where the stride is ignored, and then refused
    for (int64_t token = 0; token < 4; ++token) {
      wide.put(token * 8, token);
      wide.put(token * 8 + 1, token + 4);
    }
    std::array<int64_t, 2> shape{4, 2}, strides{8, 1};
    wide.dl().shape = shape.data();
    wide.dl().strides = strides.data();
    EXPECT_EQ(count_ids(Placement::even(4, 8), 1, wide.arg()), (Counts{1, 1, 1, 1, 1, 1, 1, 1}));
  }
}

TEST(CountIds, OfNoTokensOrNoSlotsIsZero) {
  const HostTensor no_tokens(DType::kInt64, {0, 2}), no_slots(DType::kInt32, {3, 0});
  EXPECT_EQ(count_ids(Placement::even(2, 4), 0, no_tokens.arg()), (Counts{0, 0, 0, 0}));
  EXPECT_EQ(count_ids(Placement::even(2, 4), 0, no_slots.arg()), (Counts{0, 0, 0, 0}));
}

TEST(CountIds, WithoutExpertsAcceptsOnlyMinusOne) {
  const HostTensor none(DType::kInt32, {2, 1}, {-1, -1}), one(DType::kInt32, {2, 1}, {-1, 0});
  EXPECT_EQ(count_ids(Placement::even(2, 0), 0, none.arg()), Counts{});
  EXPECT_THAT(message_of<InvalidArgument>([&] { count_ids(Placement::even(2, 0), 0, one.arg()); }),
              Says("topk_ids", "got 0", "token 1", "slot 0"));
}

struct Outsider {
  DType dtype;
  int64_t value;
};
class OutsiderIds : public ::testing::TestWithParam<Outsider> {};

TEST_P(OutsiderIds, AreNamedWithRankTokenSlotAndFullValue) {
  HostTensor ids(GetParam().dtype, {3, 4});
  ids.put(2 * 4 + 1, GetParam().value);
  EXPECT_THAT(message_of<InvalidArgument>([&] { count_ids(Placement::even(4, 64), 3, ids.arg()); }),
              Says("topk_ids", "0..63", "rank 3", "token 2", "slot 1", "got " + std::to_string(GetParam().value)));
}
INSTANTIATE_TEST_SUITE_P(CountIds, OutsiderIds,
                         ::testing::Values(Outsider{DType::kInt32, -2}, Outsider{DType::kInt32, 64},
                                           Outsider{DType::kInt32, 2147483647},
                                           Outsider{DType::kInt32, std::numeric_limits<int32_t>::min()},
                                           Outsider{DType::kInt64, -2}, Outsider{DType::kInt64, 64},
                                           Outsider{DType::kInt64, int64_t{1} << 32},
                                           Outsider{DType::kInt64, 0xffffffff},  // -1 when narrowed
                                           Outsider{DType::kInt64, static_cast<int64_t>(0xffff0bdc00000005)},
                                           Outsider{DType::kInt64, std::numeric_limits<int64_t>::min()},
                                           Outsider{DType::kInt64, std::numeric_limits<int64_t>::max()}));

TEST(CountIds, RefusesOtherDTypesByName) {
  const HostTensor ids(DType::kFloat32, {2, 2});
  EXPECT_THAT(message_of<DTypeError>([&] { count_ids(Placement::even(2, 4), 0, ids.arg()); }),
              Says("topk_ids", "float32", "int32", "int64"));
  HostTensor unsigned_ids(DType::kInt32, {2, 2});
  unsigned_ids.dl().dtype = {kDLUInt, 32, 1};
  EXPECT_THAT(message_of<DTypeError>([&] { count_ids(Placement::even(2, 4), 0, unsigned_ids.arg()); }),
              Says("topk_ids", "uint32"));
}

TEST(CountIds, RefusesAMissingTensorAndAFlatOne) {
  EXPECT_THAT(message_of<InvalidArgument>([] { count_ids(Placement::even(2, 4), 0, {}); }),
              Says("topk_ids", "missing"));
  const HostTensor flat(DType::kInt32, {4});
  EXPECT_THAT(message_of<InvalidArgument>([&] { count_ids(Placement::even(2, 4), 0, flat.arg()); }),
              Says("topk_ids", "[T, k]", "[4]"));
}

TEST(CountIds, RefusesARankOutsideThePlacement) {
  const HostTensor ids(DType::kInt32, {1, 1});
  EXPECT_THAT(message_of<InvalidArgument>([&] { count_ids(Placement::even(2, 4), 2, ids.arg()); }), Says("rank", "2"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { count_ids(Placement::even(2, 4), -1, ids.arg()); }),
              Says("rank", "-1"));
}

}  // namespace
}  // namespace tileoverlap
