// Ranks of one process on CUDA devices.

#include "tileoverlap/transport/device_world.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "support/messages.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Says;

struct Devices {
  int count = 0;
  std::string why_none;

  Devices() {
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess) return;
    count = 0;
    why_none = cudaGetErrorString(status);
    (void)cudaGetLastError();
  }
};

std::vector<std::byte> read(const std::byte* memory, size_t bytes) {
  std::vector<std::byte> result(bytes, std::byte{0xee});
  EXPECT_EQ(cudaMemcpy(result.data(), memory, bytes, cudaMemcpyDefault), cudaSuccess);
  return result;
}

class DeviceWorldOnAGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (devices_.count == 0) GTEST_SKIP() << "no CUDA device: " << devices_.why_none;
  }
  const Devices devices_;
};

TEST(DeviceWorld, RefusesAnEmptyListAndNegativeDevices) {
  EXPECT_THAT(message_of<InvalidArgument>([] { make_device_world({}); }), Says("devices", "none"));
  EXPECT_THAT(message_of<InvalidArgument>([] { make_device_world({0, -3}); }), Says("rank 1", "-3"));
}

TEST(DeviceWorld, SaysWhyThereIsNoDevice) {
  const Devices devices;
  if (devices.count > 0) GTEST_SKIP() << "there are " << devices.count << " CUDA devices";
  EXPECT_THAT(message_of<Error>([] { make_device_world({0}); }), Says("no CUDA device can be used", devices.why_none));
}

TEST_F(DeviceWorldOnAGpu, RefusesADeviceThatIsNotThere) {
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                make_device_world({0, devices_.count});
              }),
              Says("rank 1", std::to_string(devices_.count), "this process sees " + std::to_string(devices_.count)));
}

TEST_F(DeviceWorldOnAGpu, LetsRanksShareADevice) {
  const auto transports = make_device_world({0, 0, 0});
  ASSERT_EQ(transports.size(), 3u);
  for (int32_t rank = 0; rank < 3; ++rank) {
    const Transport& transport = *transports[static_cast<size_t>(rank)];
    EXPECT_EQ(transport.rank(), rank);
    EXPECT_EQ(transport.world(), 3);
    EXPECT_EQ(transport.device().device_type, kDLCUDA);
    EXPECT_EQ(transport.device().device_id, 0);
    EXPECT_EQ(transport.ranks_on_device(), 3);
    EXPECT_THAT(transport.repr(), Says("DeviceTransport", std::to_string(rank), "3", "cuda:0"));
  }
}

TEST_F(DeviceWorldOnAGpu, AllocatesZeroedDeviceMemoryThatPeersSee) {
  constexpr size_t kBytes = (size_t{1} << 20) + 16;
  const auto transports = make_device_world({0, 0});
  for (int round = 0; round < 4; ++round) {  // memory that comes back from cudaFree is dirty
    const auto mine = transports[0]->allocate("a", kBytes), theirs = transports[1]->allocate("a", kBytes);
    EXPECT_EQ(mine->peer(1), theirs->local());
    EXPECT_EQ(theirs->peer(0), mine->local());
    cudaPointerAttributes attributes{};
    ASSERT_EQ(cudaPointerGetAttributes(&attributes, mine->local()), cudaSuccess);
    EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
    EXPECT_EQ(attributes.device, 0);
    for (const auto& memory : {mine, theirs}) {
      const auto bytes = read(memory->local(), kBytes);
      ASSERT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
      ASSERT_EQ(cudaMemset(memory->local(), 0xff, kBytes), cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
}

TEST_F(DeviceWorldOnAGpu, GivesAnAllocationWithoutBytesAnAddress) {
  const auto transports = make_device_world({0, 0});
  const auto mine = transports[0]->allocate("a", 0);
  EXPECT_EQ(mine->bytes(), 0u);
  EXPECT_NE(mine->local(), nullptr);
  EXPECT_EQ(mine->peer(1), nullptr);  // not there yet
}

TEST_F(DeviceWorldOnAGpu, NamesRankBytesAndDeviceWhereMemoryIsShort) {
  const auto transports = make_device_world({0});
  EXPECT_THAT(message_of<Error>([&] { transports[0]->allocate("a", size_t{1} << 50); }),
              Says("rank 0", "1125899906842624", "cuda:0", "out of memory", "cudaErrorMemoryAllocation"));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_NE(transports[0]->allocate("a", 64)->local(), nullptr);
}

TEST_F(DeviceWorldOnAGpu, GivesBackMemoryOfAnAllocationThatNobodyJoins) {
  const auto transports = make_device_world({0, 0});
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  for (int round = 0; round < 8; ++round) transports[0]->allocate("a", free_bytes / 3).reset();
}

TEST_F(DeviceWorldOnAGpu, ReachesMemoryOfOtherDevices) {
  if (devices_.count < 2) GTEST_SKIP() << "one CUDA device only";
  int there = 0, back = 0;
  ASSERT_EQ(cudaDeviceCanAccessPeer(&there, 0, 1), cudaSuccess);
  ASSERT_EQ(cudaDeviceCanAccessPeer(&back, 1, 0), cudaSuccess);
  if (there == 0 || back == 0) {
    EXPECT_THAT(message_of<InvalidArgument>([] { make_device_world({0, 1}); }), Says("cuda:0", "cuda:1"));
    return;
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const auto again = make_device_world({1, 0});  // access that is enabled already is no error
  const auto transports = make_device_world({0, 1, 1});
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0);
  EXPECT_EQ(transports[0]->ranks_on_device(), 1);
  EXPECT_EQ(transports[2]->ranks_on_device(), 2);
  const auto mine = transports[0]->allocate("a", 64), theirs = transports[1]->allocate("a", 64);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, theirs->local()), cudaSuccess);
  EXPECT_EQ(attributes.device, 1);
  ASSERT_EQ(cudaMemset(mine->peer(1), 0x5a, 64), cudaSuccess);  // by device 0
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(read(theirs->local(), 64), std::vector<std::byte>(64, std::byte{0x5a}));
}

}  // namespace
}  // namespace tileoverlap
