// NVSHMEM's plugin as built: it loads, also without a GPU.

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "execute/link_kernels.hpp"
#include "support/messages.hpp"
#include "support/scoped_env.hpp"
#include "tileoverlap/core/error.hpp"
#include "tileoverlap/execute/cuda_executor.hpp"
#include "tileoverlap/transport/nvshmem.hpp"
#include "transport/nvshmem/load_plugin.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Says;
using testing::ScopedEnv;

std::string host_library_folder() {
  return std::filesystem::path(TILEOVERLAP_NVSHMEM_HOST_LIBRARY).parent_path().string();
}

TEST(BuiltNvshmemPlugin, LoadsAndIsOfTheVersionItWasBuiltWith) {
  const ScopedEnv plugin_path("TILEOVERLAP_NVSHMEM_PLUGIN", TILEOVERLAP_BUILT_PLUGIN);
  const NvshmemPlugin& plugin = load_nvshmem_plugin({host_library_folder()});
  EXPECT_EQ(version_text(plugin.built), TILEOVERLAP_NVSHMEM_VERSION);
  EXPECT_FALSE(plugin.is_started());
  EXPECT_TRUE(plugin.kernels->sources_in_part);
  EXPECT_EQ(&load_nvshmem_plugin({}), &plugin);
}

NvshmemOptions one_rank() {
  NvshmemOptions options;
  options.libraries = {host_library_folder()};
  options.all_gather = [](std::span<const std::byte> mine) {
    return std::vector<std::vector<std::byte>>{{mine.begin(), mine.end()}};
  };
  return options;
}

TEST(StartNvshmem, RefusesNumbersOutOfRange) {
  const auto refusal = [](auto change) {
    NvshmemOptions options = one_rank();
    change(options);
    return message_of<InvalidArgument>([&] { start_nvshmem(options); });
  };
  EXPECT_THAT(refusal([](NvshmemOptions& options) { options.world = 0; }), Says("world", "0"));
  EXPECT_THAT(refusal([](NvshmemOptions& options) { options.rank = 1; }), Says("rank", "1", "0..0"));
  EXPECT_THAT(refusal([](NvshmemOptions& options) { options.device = -1; }), Says("device", "-1"));
  EXPECT_THAT(refusal([](NvshmemOptions& options) { options.ranks_on_device = 2; }), Says("ranks_on_device", "2"));
  EXPECT_THAT(refusal([](NvshmemOptions& options) { options.all_gather = {}; }), Says("all_gather"));
}

TEST(StartNvshmem, SaysWhyWithoutAGpu) {
  if (why_no_cuda_device().empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(message_of<Error>([] { start_nvshmem(one_rank()); }), Says("no CUDA device can be used"));
}

}  // namespace
}  // namespace tileoverlap
