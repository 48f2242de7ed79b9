// The experts' GEMM on this machine's GPU: every kernel that runs there, against sums in double.

#include "produce/gpu_producer.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda_objects.hpp"
#include "support/messages.hpp"
#include "support/random.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/core/math.hpp"
#include "tileoverlap/plan/plan.hpp"

namespace tileoverlap {
namespace {

using testing::has_words;
using testing::Random;

constexpr ExpertKind kActivations[] = {ExpertKind::kSingle, ExpertKind::kGelu, ExpertKind::kSiluGate};
constexpr DType kTypes[] = {DType::kBFloat16, DType::kFloat16};
// They differ in their upper half alone: a flag of 32 bits would not do.
constexpr uint64_t kStale = 7, kEpoch = (uint64_t{1} << 32) + kStale;
constexpr uint16_t kPoison = 0xffff;  // a NaN in both types
constexpr int64_t kGuardRows = 2, kGuardColumns = 16;

uint16_t to_bits(DType dtype, float value) {
  return dtype == DType::kFloat16 ? from_float<Float16>(value).bits : from_float<BFloat16>(value).bits;
}

float from_bits(DType dtype, uint16_t bits) {
  return dtype == DType::kFloat16 ? to_float(Float16{bits}) : to_float(BFloat16{bits});
}

// Device memory, every byte 0xff until it is written.
DeviceBytes poisoned(int64_t bytes) {
  DeviceBytes memory(0, static_cast<size_t>(bytes));
  cuda_check(cudaMemset(memory.data(), 0xff, memory.bytes()), "poison");
  return memory;
}

template <class T>
DeviceBytes uploaded(const std::vector<T>& values) {
  DeviceBytes memory(0, values.size() * sizeof(T));
  cuda_check(cudaMemcpy(memory.data(), values.data(), memory.bytes(), cudaMemcpyHostToDevice), "upload");
  return memory;
}

template <class T>
std::vector<T> downloaded(const DeviceBytes& memory) {
  std::vector<T> values(memory.bytes() / sizeof(T));
  cuda_check(cudaMemcpy(values.data(), memory.data(), memory.bytes(), cudaMemcpyDeviceToHost), "download");
  return values;
}

template <class T>
T* as(const DeviceBytes& memory) {
  return reinterpret_cast<T*>(memory.data());
}

// Writes [rows, columns] to memory whose rows lie `stride` apart.
void write_rows(uint16_t* device, int64_t stride, const std::vector<uint16_t>& values, int64_t columns) {
  const auto width = static_cast<size_t>(columns) * sizeof(uint16_t);
  cuda_check(cudaMemcpy2D(device, static_cast<size_t>(stride) * sizeof(uint16_t), values.data(), width, width,
                          values.size() / static_cast<size_t>(columns), cudaMemcpyHostToDevice),
             "upload");
}

struct Shape {
  int64_t k, n;
  std::vector<int32_t> copies;  // of each expert
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << "k = " << shape.k << ", n = " << shape.n << ", copies";
  for (const int32_t copies : shape.copies) out << ' ' << copies;
  return out;
}

// Elements between the end of a row and the next one; `experts` between the last row of an expert and the next one.
struct Gaps {
  int64_t input = 0, weights = 0, experts = 0, output = 0;
};

struct Launch {
  int32_t ctas = 7;
  bool reversed = false;  // bands from last to first, each a group of its own
  bool flags = true;
  bool stamps = false;
  int32_t withheld_band = -1;
};

struct Result {
  std::vector<uint16_t> output;  // [rows + kGuardRows, read_columns]
  std::vector<uint64_t> flags;   // [bands + 1, tiles_n]
  std::vector<TileStamp> stamps;
};

struct Expected {
  double value, tolerance;
};

// One GEMM of one kernel: operands on the host and on the device. Equal seeds give equal operands for each copy,
// whatever the kernel's tile.
class Problem {
 public:
  Problem(const GpuProducer& producer, Shape shape, uint64_t seed, Gaps gaps = {}, bool tabled = false)
      : producer_(producer),
        shape_(std::move(shape)),
        plan_(make_plan_of(producer, shape_)),
        parts_(producer.activation() == ExpertKind::kSiluGate ? 2 : 1),
        input_stride_(shape_.k + gaps.input),
        weight_stride_(shape_.k + gaps.weights),
        expert_stride_(parts_ * shape_.n * weight_stride_ + gaps.experts),
        output_stride_(shape_.n + gaps.output),
        input_(poisoned(rows() * input_stride_ * kBytes)) {
    Random random(seed);
    const float scale = 6.0f / std::sqrt(static_cast<float>(shape_.k));  // sums of about 2
    std::vector<uint16_t> bits(static_cast<size_t>(rows() * shape_.k), kPoison);
    input_values_.resize(bits.size());
    for (const ExpertRows& expert : plan_->experts) {
      for (int64_t i = expert.row_begin * shape_.k; i < (expert.row_begin + expert.rows) * shape_.k; ++i) {
        bits[static_cast<size_t>(i)] = draw(random, 1.0f, input_values_[static_cast<size_t>(i)]);
      }
    }
    write_rows(as<uint16_t>(input_), input_stride_, bits, shape_.k);

    if (!tabled) weights_.push_back(poisoned(experts() * expert_stride_ * kBytes));
    for (int64_t expert = 0; expert < experts(); ++expert) {
      std::vector<uint16_t> matrix(static_cast<size_t>(parts_ * shape_.n * shape_.k));
      std::vector<float>& values = weight_values_.emplace_back(matrix.size());
      for (size_t i = 0; i < matrix.size(); ++i) matrix[i] = draw(random, scale, values[i]);
      if (tabled) weights_.push_back(poisoned(parts_ * shape_.n * weight_stride_ * kBytes));
      uint16_t* place = tabled ? as<uint16_t>(weights_.back()) : as<uint16_t>(weights_[0]) + expert * expert_stride_;
      write_rows(place, weight_stride_, matrix, shape_.k);
    }
    if (tabled) {
      std::vector<const void*> pointers;
      for (const DeviceBytes& matrix : weights_) pointers.push_back(matrix.data());
      struct alignas(64) Line {  // as tensor maps want it
        std::byte bytes[64];
      };
      const auto bytes = static_cast<int64_t>(pointers.size() * producer.table_entry_bytes());
      std::vector<Line> table(static_cast<size_t>(ceil_div(bytes, sizeof(Line))));
      producer.encode_table(pointers, weight_stride_, shape_.k, shape_.n, table[0].bytes);
      table_ = uploaded(table);
    }
  }

  const Plan& plan() const { return plan_; }
  // Of input and output: up to the last copy, so that the last band is not full.
  int64_t rows() const { return rows_of(*plan_); }

  Result run(const Launch& launch = {}) const {
    std::vector<ScheduledBand> order = plan_->order;
    if (launch.reversed) {
      std::reverse(order.begin(), order.end());
      for (size_t i = 0; i < order.size(); ++i) {
        order[i].group_begin = static_cast<int32_t>(i);
        order[i].group_size = 1;
      }
    }
    PlanHead plan_head{};
    plan_head.bands = plan_.bands();
    plan_head.refused_by = -1;
    const DeviceBytes head = uploaded(std::vector{plan_head}), device_order = uploaded(order);
    const DeviceBytes epoch = uploaded(std::vector{kEpoch});
    const auto flag_count = static_cast<size_t>(plan_.tiles() + plan_->tiles_n);
    const DeviceBytes flags = uploaded(std::vector(flag_count, kStale));
    const DeviceBytes stamps = poisoned(static_cast<int64_t>(flag_count * sizeof(TileStamp)));
    const DeviceBytes output = poisoned((rows() + kGuardRows) * output_stride_ * kBytes);

    const GemmTask task{.head = as<PlanHead>(head),
                        .order = as<ScheduledBand>(device_order),
                        .first_expert = plan_->placement.begin(plan_->rank),
                        .experts = static_cast<int32_t>(experts()),
                        .rows = rows(),
                        .k = shape_.k,
                        .n = shape_.n,
                        .input = input_.data(),
                        .input_stride = input_stride_,
                        .weights = {.tensor = table_.data() != nullptr ? nullptr : weights_[0].data(),
                                    .expert_stride = expert_stride_,
                                    .row_stride = weight_stride_,
                                    .table = table_.data()},
                        .output = output.data(),
                        .output_stride = output_stride_,
                        .publish = {.flags = launch.flags ? as<uint64_t>(flags) : nullptr,
                                    .epoch = launch.flags ? as<uint64_t>(epoch) : nullptr,
                                    .stamps = launch.stamps ? as<TileStamp>(stamps) : nullptr,
                                    .withheld_band = launch.withheld_band},
                        .ctas = launch.ctas};
    cuda_check(cudaDeviceSynchronize(), "before the launch");
    producer_.load();
    producer_.launch(task, nullptr);
    cuda_check(cudaDeviceSynchronize(), producer_.name());

    Result result{.output = std::vector<uint16_t>(static_cast<size_t>((rows() + kGuardRows) * read_columns())),
                  .flags = downloaded<uint64_t>(flags),
                  .stamps = downloaded<TileStamp>(stamps)};
    const auto width = static_cast<size_t>(read_columns() * kBytes);
    cuda_check(cudaMemcpy2D(result.output.data(), width, output.data(), static_cast<size_t>(output_stride_ * kBytes),
                            width, static_cast<size_t>(rows() + kGuardRows), cudaMemcpyDeviceToHost),
               "download");
    return result;
  }

  // Every copy's row is right, and nothing was written behind the last row or between rows.
  ::testing::AssertionResult is_right(const Result& result) const {
    for (int64_t row = 0; row < rows() + kGuardRows; ++row) {
      for (int64_t column = row < rows() ? shape_.n : 0; column < read_columns(); ++column) {
        if (result.output[static_cast<size_t>(row * read_columns() + column)] != kPoison)
          return ::testing::AssertionFailure() << "written outside the output: row " << row << ", column " << column;
      }
    }
    for (const ExpertRows& expert : plan_->experts) {
      for (int64_t row = expert.row_begin; row < expert.row_begin + expert.rows; ++row) {
        for (int64_t column = 0; column < shape_.n; ++column) {
          const double got = at(result, row, column);
          const Expected expected = expected_at(expert.expert, row, column);
          if (std::abs(got - expected.value) <= expected.tolerance) continue;  // false for a NaN
          return ::testing::AssertionFailure()
                 << "row " << row << ", column " << column << ", expert " << expert.expert << ": " << got << ", not "
                 << expected.value << " within " << expected.tolerance;
        }
      }
    }
    return ::testing::AssertionSuccess();
  }

  // The copies' rows, without the rows between experts, which belong to nobody.
  std::vector<uint16_t> copies(const Result& result) const {
    std::vector<uint16_t> bits;
    for (const ExpertRows& expert : plan_->experts) {
      for (int64_t row = expert.row_begin; row < expert.row_begin + expert.rows; ++row) {
        const auto begin = result.output.begin() + row * read_columns();
        bits.insert(bits.end(), begin, begin + shape_.n);
      }
    }
    return bits;
  }
  std::vector<double> tolerances() const {
    std::vector<double> tolerances;
    for (const ExpertRows& expert : plan_->experts) {
      for (int64_t row = expert.row_begin; row < expert.row_begin + expert.rows; ++row) {
        for (int64_t column = 0; column < shape_.n; ++column)
          tolerances.push_back(expected_at(expert.expert, row, column).tolerance);
      }
    }
    return tolerances;
  }

 private:
  static constexpr int64_t kBytes = sizeof(uint16_t);

  // Rank 1 of two, behind a rank with two experts: global ids are not local ones.
  static Plan make_plan_of(const GpuProducer& producer, const Shape& shape) {
    const auto experts = static_cast<int32_t>(shape.copies.size());
    const Placement placement = Placement::from_begins({0, 2, 2 + experts});
    std::vector<int32_t> counts{5, 6}, local{3, 0};
    for (const int32_t copies : shape.copies) {
      counts.push_back(copies / 2);
      local.push_back(copies - copies / 2);
    }
    counts.insert(counts.end(), local.begin(), local.end());
    return make_plan(placement, 1, RouteCounts(placement, counts), shape.n,
                     {.tile_m = producer.tile_m(), .tile_n = producer.tile_n()});
  }

  static int64_t rows_of(const PlanData& plan) {
    int64_t rows = 1;
    for (const ExpertRows& expert : plan.experts) {
      if (expert.rows > 0) rows = std::max(rows, expert.row_begin + expert.rows);
    }
    return rows;
  }

  uint16_t draw(Random& random, float scale, float& value) const {
    const uint16_t bits = to_bits(producer_.dtype(), random.unit() * scale);
    value = from_bits(producer_.dtype(), bits);
    return bits;
  }

  int64_t experts() const { return static_cast<int64_t>(shape_.copies.size()); }
  int64_t read_columns() const { return std::min(output_stride_, shape_.n + kGuardColumns); }
  double at(const Result& result, int64_t row, int64_t column) const {
    return from_bits(producer_.dtype(), result.output[static_cast<size_t>(row * read_columns() + column)]);
  }

  // A sum, and what float32 may add to it: a step of the tensor core takes 8 products or more and truncates.
  Expected dot(int32_t expert, int64_t row, int64_t weight_row) const {
    const float* a = input_values_.data() + row * shape_.k;
    const size_t local = static_cast<size_t>(expert - plan_->placement.begin(plan_->rank));
    const float* b = weight_values_[local].data() + weight_row * shape_.k;
    double sum = 0, magnitude = 0;
    for (int64_t i = 0; i < shape_.k; ++i) {
      const double product = double{a[i]} * double{b[i]};
      sum += product;
      magnitude += std::abs(product);
    }
    return {sum, (static_cast<double>(shape_.k) / 8 + 8) * 0x1p-23 * magnitude};
  }

  // The tolerance: the sums' error through the activation, that of a few operations in float32, one rounding.
  Expected expected_at(int32_t expert, int64_t row, int64_t column) const {
    constexpr double kFewOperations = 0x1p-21, kSteepest = 1.2;  // of gelu and silu
    Expected result = dot(expert, row, column);
    if (producer_.activation() == ExpertKind::kGelu) {
      const double x = result.value;
      result.value = 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
      result.tolerance = kSteepest * result.tolerance + std::abs(x) * kFewOperations;
    } else if (producer_.activation() == ExpertKind::kSiluGate) {
      const Expected gate = result, up = dot(expert, row, shape_.n + column);
      const double silu = gate.value / (1 + std::exp(-gate.value));
      result.value = silu * up.value;
      result.tolerance = kSteepest * gate.tolerance * (std::abs(up.value) + up.tolerance) +
                         std::abs(silu) * up.tolerance + std::abs(result.value) * kFewOperations;
    }
    const double roundoff = producer_.dtype() == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
    constexpr double kSmallestHalf = 0x1p-25;  // half the distance of float16's subnormals
    result.tolerance += roundoff * (std::abs(result.value) + result.tolerance) + kSmallestHalf;
    return result;
  }

  const GpuProducer& producer_;
  Shape shape_;
  Plan plan_;
  int64_t parts_;  // weight matrices of an expert
  int64_t input_stride_, weight_stride_, expert_stride_, output_stride_;
  DeviceBytes input_;
  std::vector<DeviceBytes> weights_;  // one tensor, or one allocation an expert
  DeviceBytes table_;                 // none unless one allocation an expert
  std::vector<float> input_values_;
  std::vector<std::vector<float>> weight_values_;
};

// Every kernel that runs on this chip, also those that a newer one hides.
class GpuGemm : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(status);
    if (devices == 0) GTEST_SKIP() << "no GPU: none is visible";
    int major = 0, minor = 0;
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "cudaDeviceGetAttribute");
    cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "cudaDeviceGetAttribute");
    const int32_t capability = 10 * major + minor;
    std::set<const GpuProducer*> seen;
    for (int32_t asked = capability; asked > 0; --asked) {
      for (const DType dtype : kTypes) {
        for (const ExpertKind activation : kActivations) {
          for (const auto& [tile_m, tile_n] : producer_tiles(asked, dtype, activation)) {
            const GpuProducer* producer = find_producer(asked, dtype, tile_m, tile_n, activation);
            if (producer->exact_capability() && producer->min_capability() != capability) continue;
            if (seen.insert(producer).second) producers_.push_back(producer);
          }
        }
      }
    }
    if (producers_.empty()) GTEST_SKIP() << "no kernel runs on compute capability " << capability;
  }

  std::vector<const GpuProducer*> producers_;
};

const Shape kUneven{72, 264, {130, 0, 5, 257}};
const Gaps kGaps{.input = 8, .weights = 16, .experts = 0, .output = 24};

TEST_F(GpuGemm, GivesTheSumsOfADoubleReference) {
  const Shape shapes[] = {
      {8, 8, {1}},          kUneven, {200, 1000, {3, 128, 0, 60}}, {2056, 264, {100, 29}}, {2056, 1000, {0, 9, 0}},
      {64, 256, {128, 256}}};
  for (const GpuProducer* producer : producers_) {
    uint64_t seed = 1;
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(::testing::Message() << producer->name() << ", " << shape);
      for (const bool tabled : {false, true}) {
        const Problem problem(*producer, shape, seed++, tabled ? kGaps : Gaps{}, tabled);
        EXPECT_TRUE(problem.is_right(problem.run())) << (tabled ? "table, rows with gaps" : "tensor");
      }
    }
  }
}

TEST_F(GpuGemm, TakesAnyShapeOf16ByteRows) {
  Random random(41);
  for (const GpuProducer* producer : producers_) {
    for (int round = 0; round < 6; ++round) {
      Shape shape{8 * random.between(1, 40), 8 * random.between(1, 60), {}};
      for (int64_t expert = random.between(1, 6); expert > 0; --expert)
        shape.copies.push_back(random.chance(30) ? 0 : random.between32(1, 150));
      const Gaps gaps{
          .input = 8 * random.between(0, 3), .weights = 8 * random.between(0, 3), .output = 8 * random.between(0, 3)};
      SCOPED_TRACE(::testing::Message() << producer->name() << ", " << shape << ", round " << round);
      const Problem problem(*producer, shape, random.bits(), gaps, random.chance(50));
      EXPECT_TRUE(problem.is_right(problem.run({.ctas = random.between32(1, 150), .reversed = random.chance(50)})));
    }
  }
}

TEST_F(GpuGemm, TakesExpertsThatLieApart) {
  for (const GpuProducer* producer : producers_) {
    SCOPED_TRACE(producer->name());
    // A gated kernel steps from gate to up by half an expert: gaps between experts need a table there.
    const bool tabled = producer->activation() == ExpertKind::kSiluGate;
    const Problem problem(*producer, kUneven, 2, {.weights = 8, .experts = 72}, tabled);
    EXPECT_TRUE(problem.is_right(problem.run()));
  }
}

TEST_F(GpuGemm, PublishesEveryTileOfThePlanAndNoOther) {
  for (const GpuProducer* producer : producers_) {
    SCOPED_TRACE(producer->name());
    const Problem problem(*producer, kUneven, 3, kGaps);
    const Launch launch{.ctas = 5, .stamps = true};
    const Result result = problem.run(launch);
    for (size_t i = 0; i < result.flags.size(); ++i) {
      const bool planned = static_cast<int64_t>(i) < problem.plan().tiles();
      ASSERT_EQ(result.flags[i], planned ? kEpoch : kStale) << "flag " << i;
      if (planned) {
        ASSERT_LT(result.stamps[i].cta, static_cast<uint32_t>(launch.ctas)) << "stamp " << i;
        ASSERT_GT(result.stamps[i].end_ns, 0u) << "stamp " << i;
      }
      constexpr uint64_t kUnwritten = ~uint64_t{0};
      ASSERT_EQ(result.stamps[i].end_ns == kUnwritten, !planned) << "stamp " << i;
    }
  }
}

TEST_F(GpuGemm, ComputesAWithheldBandWithoutPublishingIt) {
  for (const GpuProducer* producer : producers_) {
    SCOPED_TRACE(producer->name());
    const Problem problem(*producer, kUneven, 4);
    const int32_t band = problem.plan()->order.back().band;
    const Result result = problem.run({.withheld_band = band});
    EXPECT_TRUE(problem.is_right(result));
    for (int64_t i = 0; i < problem.plan().tiles(); ++i) {
      const bool withheld = i / problem.plan()->tiles_n == band;
      ASSERT_EQ(result.flags[static_cast<size_t>(i)], withheld ? kStale : kEpoch) << "flag " << i;
    }
  }
}

TEST_F(GpuGemm, GivesTheSameBitsOnAnyNumberOfCtasInAnyOrder) {
  for (const GpuProducer* producer : producers_) {
    SCOPED_TRACE(producer->name());
    const Problem problem(*producer, {200, 1000, {130, 0, 300}}, 5, kGaps);
    const std::vector<uint16_t> bits = problem.copies(problem.run({.ctas = 132}));
    EXPECT_EQ(problem.copies(problem.run({.ctas = 1})), bits) << "one CTA";
    EXPECT_EQ(problem.copies(problem.run({.ctas = 5, .reversed = true})), bits) << "another order";
    EXPECT_EQ(problem.copies(problem.run({.flags = false})), bits) << "without flags";
    EXPECT_EQ(problem.copies(problem.run({.flags = false, .stamps = true})), bits) << "with stamps alone";
    const Problem tabled(*producer, {200, 1000, {130, 0, 300}}, 5, {}, true);
    EXPECT_EQ(tabled.copies(tabled.run()), bits) << "weights by table, rows without gaps";
  }
}

TEST_F(GpuGemm, WritesNothingWithoutCopies) {
  for (const GpuProducer* producer : producers_) {
    SCOPED_TRACE(producer->name());
    const Problem problem(*producer, {64, 64, {0, 0}}, 6);
    ASSERT_EQ(problem.plan().bands(), 0);
    const Result result = problem.run();
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), kPoison),
              static_cast<int64_t>(result.output.size()));
    EXPECT_EQ(std::count(result.flags.begin(), result.flags.end(), kStale), static_cast<int64_t>(result.flags.size()));
  }
}

TEST_F(GpuGemm, ReachesElementsBeyond2To31) {
  constexpr int64_t kGap = int64_t{1} << 23;
  const Shape shape{72, 264, {257, 40}};  // rows and weight rows from 256 on lie beyond
  size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  constexpr size_t kNeeded = size_t{40} << 30;
  if (free < kNeeded) GTEST_SKIP() << "needs 40 GiB of GPU memory, " << (free >> 30) << " GiB are free";
  for (const GpuProducer* producer : producers_) {
    SCOPED_TRACE(producer->name());
    const Problem problem(*producer, shape, 7, {.input = kGap, .weights = kGap, .output = kGap});
    EXPECT_TRUE(problem.is_right(problem.run()));
  }
}

TEST_F(GpuGemm, KernelsAgree) {
  const Shape shape{520, 264, {70, 0, 200}};
  for (const DType dtype : kTypes) {
    for (const ExpertKind activation : kActivations) {
      std::string first_name;
      std::vector<uint16_t> first;
      for (const GpuProducer* producer : producers_) {
        if (producer->dtype() != dtype || producer->activation() != activation) continue;
        const Problem problem(*producer, shape, 8);
        const std::vector<uint16_t> bits = problem.copies(problem.run());
        if (first.empty()) {
          first = bits;
          first_name = producer->name();
          continue;
        }
        const std::vector<double> tolerances = problem.tolerances();
        ASSERT_EQ(bits.size(), first.size());
        for (size_t i = 0; i < bits.size(); ++i) {
          ASSERT_NEAR(from_bits(dtype, bits[i]), from_bits(dtype, first[i]), 2 * tolerances[i])
              << producer->name() << " and " << first_name << ", element " << i;
        }
      }
    }
  }
}

TEST(FindProducer, GivesTheMostRecentKernelThatRunsOnTheChip) {
  EXPECT_EQ(find_producer(75, DType::kBFloat16, 128, 128, ExpertKind::kSingle), nullptr);
  EXPECT_TRUE(producer_tiles(75, DType::kBFloat16).empty());
  for (const int32_t capability : {80, 86, 89, 90, 100, 120}) {
    for (const DType dtype : kTypes) {
      for (const ExpertKind activation : kActivations) {
        SCOPED_TRACE(::testing::Message()
                     << "capability " << capability << ", " << name(dtype) << ", " << name(activation));
        const auto tiles = producer_tiles(capability, dtype, activation);
        EXPECT_TRUE(std::is_sorted(tiles.begin(), tiles.end()));
        EXPECT_EQ(std::adjacent_find(tiles.begin(), tiles.end()), tiles.end()) << "a tile is listed twice";
        EXPECT_EQ(std::count(tiles.begin(), tiles.end(), std::pair<int32_t, int32_t>(128, 128)), 1);
        for (const auto& [tile_m, tile_n] : tiles) {
          const GpuProducer* producer = find_producer(capability, dtype, tile_m, tile_n, activation);
          ASSERT_NE(producer, nullptr) << tile_m << 'x' << tile_n;
          EXPECT_EQ(producer->dtype(), dtype);
          EXPECT_EQ(producer->tile_m(), tile_m);
          EXPECT_EQ(producer->tile_n(), tile_n);
          EXPECT_EQ(producer->activation(), activation);
          EXPECT_LE(producer->min_capability(), capability);
          EXPECT_TRUE(!producer->exact_capability() || producer->min_capability() == capability) << producer->name();
        }
      }
    }
  }
}

TEST(FindProducer, KnowsNoOtherTypesAndTiles) {
  EXPECT_EQ(find_producer(90, DType::kFloat32, 128, 128, ExpertKind::kSingle), nullptr);
  EXPECT_TRUE(producer_tiles(90, DType::kFloat32).empty());
  EXPECT_EQ(find_producer(90, DType::kBFloat16, 128, 127, ExpertKind::kSingle), nullptr);
}

TEST(FindProducer, NamesWhatCudaRefused) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0)
    GTEST_SKIP() << "a launch without a GPU, but there is one";
  const GpuProducer* producer = find_producer(80, DType::kFloat16, 128, 128, ExpertKind::kGelu);
  ASSERT_NE(producer, nullptr);
  const auto message_of = [](auto&& function) -> std::string {
    try {
      function();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_TRUE(has_words(message_of([&] { producer->load(); }), producer->name()));
  const GemmTask task{.experts = 1, .rows = 1, .k = 8, .n = 8, .input_stride = 8, .output_stride = 8, .ctas = 12};
  const std::string message = message_of([&] { producer->launch(task, nullptr); });
  EXPECT_TRUE(has_words(message, producer->name()) && has_words(message, "12 CTAs")) << message;
}

}  // namespace
}  // namespace tileoverlap
