// Compiled for another chip than the tests run on.

#include "support/foreign_kernel.hpp"

namespace tileoverlap::testing {
namespace {

__global__ void foreign_kernel() {}

}  // namespace

const void* kernel_of_another_chip() { return reinterpret_cast<const void*>(&foreign_kernel); }

}  // namespace tileoverlap::testing
