// The tile of a GEMM as measured, for shapes and GPUs that were and were not.

#include "tileoverlap/produce/tile_table.hpp"

#include <gtest/gtest.h>

#include "support/messages.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Says;

TileQuery on_h200(int64_t rows, int32_t experts, int64_t k, int64_t n) {
  return {.device = "NVIDIA H200", .capability = 90, .rows = rows, .experts = experts, .k = k, .n = n};
}

TEST(ChooseTile, GivesFewRowsAnExpertLowTiles) {
  const TileChoice few = choose_tile(on_h200(1024, 32, 2048, 7168));
  EXPECT_EQ(few.tile_m, 64);
  EXPECT_EQ(few.source, "measured on NVIDIA H200");
  const TileChoice many = choose_tile(on_h200(16384, 16, 2048, 8192));
  EXPECT_EQ(many.tile_m, 128);
  EXPECT_EQ(many.source, "measured on NVIDIA H200");
}

TEST(ChooseTile, TakesTheNearestShape) {
  const TileChoice there = choose_tile(on_h200(1024, 32, 2048, 7168));
  for (const TileQuery& query : {on_h200(900, 32, 2048, 7168), on_h200(1024, 30, 2048, 7168),
                                 on_h200(1024, 32, 2100, 7168), on_h200(1024, 32, 2048, 7000)}) {
    const TileChoice near = choose_tile(query);
    EXPECT_EQ(near.tile_m, there.tile_m);
    EXPECT_EQ(near.tile_n, there.tile_n);
    EXPECT_EQ(near.group, there.group);
  }
  EXPECT_EQ(choose_tile(on_h200(0, 1, 1, 1)).tile_m, 64);  // no row is like one row
}

TEST(ChooseTile, OfAnotherGpuOfTheSameKindIsTheSame) {
  TileQuery query = on_h200(1024, 32, 2048, 7168);
  const TileChoice there = choose_tile(query);
  query.device = "NVIDIA H100 80GB HBM3";
  const TileChoice choice = choose_tile(query);
  EXPECT_EQ(choice.tile_m, there.tile_m);
  EXPECT_EQ(choice.source, "as on NVIDIA H200");
}

TEST(ChooseTile, OfAGpuThatNobodyMeasuredIsWhatAllHave) {
  TileQuery query = on_h200(1024, 32, 2048, 7168);
  query.device = "NVIDIA A100-SXM4-80GB";
  query.capability = 80;
  const TileChoice choice = choose_tile(query);
  EXPECT_EQ(choice.tile_m, 128);
  EXPECT_EQ(choice.tile_n, 128);
  EXPECT_EQ(choice.group, 8);
  EXPECT_EQ(choice.source, "rule");
}

TEST(ChooseTile, RefusesShapesThatAreNone) {
  const auto refusal = [](const TileQuery& query) { return message_of<InvalidArgument>([&] { choose_tile(query); }); };
  EXPECT_THAT(refusal(on_h200(-1, 1, 8, 8)), Says("rows = -1"));
  EXPECT_THAT(refusal(on_h200(1, 0, 8, 8)), Says("experts = 0"));
  EXPECT_THAT(refusal(on_h200(1, 1, 0, 8)), Says("k = 0"));
  EXPECT_THAT(refusal(on_h200(1, 1, 8, 0)), Says("n = 0"));
}

}  // namespace
}  // namespace tileoverlap
