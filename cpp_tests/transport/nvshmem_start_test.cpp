// What ranks compare before they start NVSHMEM, and how it is found; without NVSHMEM.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "support/messages.hpp"
#include "support/scoped_env.hpp"
#include "tileoverlap/core/error.hpp"
#include "transport/nvshmem/hello.hpp"
#include "transport/nvshmem/load_plugin.hpp"

namespace tileoverlap {
namespace {

using testing::message_of;
using testing::Says;
using testing::ScopedEnv;

Hello hello_of(int32_t rank, int32_t world) {
  return {.rank = rank, .world = world, .built = {3, 4, 5}, .host = {3, 5, 1}};
}

std::vector<Hello> hellos_of(int32_t world) {
  std::vector<Hello> hellos;
  for (int32_t rank = 0; rank < world; ++rank) hellos.push_back(hello_of(rank, world));
  return hellos;
}

// What rank 0 makes of them.
std::vector<Hello> check(const std::vector<Hello>& hellos) {
  std::vector<std::vector<std::byte>> all;
  for (const Hello& hello : hellos) all.push_back(encode(hello));
  return check_hellos(hellos[0], all);
}

TEST(NvshmemHello, RanksThatFitAreReadBack) {
  std::vector<Hello> hellos = hellos_of(3);
  hellos[1].gpu[0] = hellos[2].gpu[0] = std::byte{7};
  const std::vector<Hello> read = check(hellos);
  ASSERT_EQ(read.size(), 3U);
  EXPECT_EQ(read[2].rank, 2);
  EXPECT_EQ(ranks_on_gpu_of(0, read), 1);
  EXPECT_EQ(ranks_on_gpu_of(1, read), 2);
  EXPECT_EQ(ranks_on_gpu_of(2, read), 2);
}

TEST(NvshmemHello, AWorldThatDiffersIsNamedWithBothNumbers) {
  std::vector<Hello> hellos = hellos_of(3);
  hellos[2].world = 4;
  EXPECT_THAT(message_of<InvalidArgument>([&] { check(hellos); }), Says("3 (rank 0)", "4 (rank 2)"));
}

TEST(NvshmemHello, AGatherOfAnotherNumberOfRanksIsNamed) {
  const std::vector<Hello> hellos = hellos_of(2);
  EXPECT_THAT(message_of<InvalidArgument>([&] { check_hellos(hellos[0], {encode(hellos[0])}); }),
              Says("world = 2", "1 ranks"));
}

TEST(NvshmemHello, RanksNumberedOtherwiseThanTheGatherAreNamed) {
  std::vector<Hello> hellos = hellos_of(3);
  std::swap(hellos[1], hellos[2]);
  EXPECT_THAT(message_of<InvalidArgument>([&] { check(hellos); }), Says("rank 2 is number 1"));
}

TEST(NvshmemHello, AnotherVersionOfTheLibraryIsNamed) {
  const std::vector<Hello> hellos = hellos_of(2);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                check_hellos(hellos[0], {encode(hellos[0]), {std::byte{1}}});
              }),
              Says("rank 1", "another version"));
}

TEST(NvshmemHello, TheFirstRankThatCannotStartIsQuotedOnAll) {
  std::vector<Hello> hellos = hellos_of(3);
  std::strcpy(hellos[1].failure.data(), "no CUDA device can be used");
  EXPECT_THAT(message_of<Error>([&] { check(hellos); }), Says("rank 1", "no CUDA device can be used"));
}

TEST(NvshmemHello, VersionsThatDifferAreNamed) {
  std::vector<Hello> hellos = hellos_of(2);
  hellos[1].host = {3, 4, 5};
  EXPECT_THAT(message_of<InvalidArgument>([&] { check(hellos); }), Says("3.5.1 (rank 0)", "3.4.5 (rank 1)"));
}

TEST(NvshmemHello, AWorldThatSomeRanksHaveStartedBeforeIsRefused) {
  std::vector<Hello> hellos = hellos_of(2);
  hellos[1].started = 1;
  EXPECT_THAT(message_of<InvalidArgument>([&] { check(hellos); }), Says("not started by rank 0", "started by rank 1"));
}

TEST(NvshmemHello, AWorldThatIsLargerThanTheOneStartedBeforeIsRefusedWithBothNumbers) {  // D11.1
  std::vector<Hello> hellos = hellos_of(4);
  for (Hello& hello : hellos) {
    hello.started = 1;
    hello.pes = 2;
  }
  EXPECT_THAT(message_of<InvalidArgument>([&] { check(hellos); }), Says("2 PEs", "world of 4"));
  for (Hello& hello : hellos) hello.pes = 8;
  EXPECT_NO_THROW(check(hellos));
  hellos[3].pes = 4;
  EXPECT_THAT(message_of<InvalidArgument>([&] { check(hellos); }), Says("4 PEs on rank 3", "8 on rank 0"));
}

TEST(NvshmemVersions, AHostLibraryServesOlderDeviceLibrariesOfItsMajorVersion) {
  EXPECT_NO_THROW(check_nvshmem_versions({3, 4, 5}, {3, 4, 5}));
  EXPECT_NO_THROW(check_nvshmem_versions({3, 4, 5}, {3, 5, 0}));
  EXPECT_THAT(message_of<Error>([] { check_nvshmem_versions({3, 4, 5}, {3, 4, 4}); }), Says("3.4.5", "3.4.4"));
  EXPECT_THAT(message_of<Error>([] { check_nvshmem_versions({3, 4, 5}, {3, 3, 9}); }), Says("3.4.5", "3.3.9"));
  EXPECT_THAT(message_of<Error>([] { check_nvshmem_versions({3, 4, 5}, {4, 0, 0}); }), Says("3.4.5", "4.0.0"));
}

// The library stays loaded once it has been found, so each of these is right only as the first of its process: as ctest
// runs them.
bool nvshmem_is_loaded() { return dlopen("libnvshmem_host.so.3", RTLD_NOW | RTLD_NOLOAD) != nullptr; }

TEST(NvshmemPlugin, WhereNothingIsFoundTheErrorListsWhereItLooked) {
  const ScopedEnv root("NVSHMEM_ROOT", "/nowhere/nvshmem");
  if (nvshmem_is_loaded() || dlopen("libnvshmem_host.so.3", RTLD_NOW) != nullptr) GTEST_SKIP() << "NVSHMEM is there";
  EXPECT_THAT(message_of<Error>([] { load_nvshmem_plugin({"/given/folder"}); }),
              Says("NVSHMEM_ROOT: /nowhere/nvshmem/lib/libnvshmem_host.so.3",
                   "given folder: /given/folder/libnvshmem_host.so.3", "system", "nvidia-nvshmem-cu13"));
}

TEST(NvshmemPlugin, WithoutAPluginTheErrorSaysHowItIsBuilt) {
  if (nvshmem_is_loaded()) GTEST_SKIP() << "NVSHMEM is loaded already";
  const ScopedEnv root("NVSHMEM_ROOT", TILEOVERLAP_FAKE_NVSHMEM);
  const ScopedEnv plugin("TILEOVERLAP_NVSHMEM_PLUGIN", "/nowhere/plugin.so");
  EXPECT_THAT(message_of<Error>([] { load_nvshmem_plugin({}); }),
              Says("TILEOVERLAP_NVSHMEM_PLUGIN", "/nowhere/plugin.so", "TILEOVERLAP_NVSHMEM"));
}

TEST(NvshmemPlugin, APluginOfAnotherNvshmemIsRefusedWithBothVersions) {
  const ScopedEnv root("NVSHMEM_ROOT", TILEOVERLAP_FAKE_NVSHMEM);
  const ScopedEnv plugin("TILEOVERLAP_NVSHMEM_PLUGIN", TILEOVERLAP_FAKE_NVSHMEM "/lib/libfake_plugin.so");
  EXPECT_THAT(message_of<Error>([] { load_nvshmem_plugin({}); }), Says("3.4.5", "3.9.0"));
}

TEST(NvshmemPlugin, APluginOfAnotherVersionOfTheLibraryIsRefused) {
  const ScopedEnv root("NVSHMEM_ROOT", TILEOVERLAP_FAKE_NVSHMEM);
  const ScopedEnv plugin("TILEOVERLAP_NVSHMEM_PLUGIN", TILEOVERLAP_FAKE_NVSHMEM "/lib/libfake_old_plugin.so");
  EXPECT_THAT(message_of<Error>([] { load_nvshmem_plugin({}); }), Says("another version"));
}

}  // namespace
}  // namespace tileoverlap
