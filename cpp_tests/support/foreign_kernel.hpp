#pragma once

namespace tileoverlap::testing {

// A kernel that is there for compute capability 7.5 alone, without PTX.
const void* kernel_of_another_chip();

}  // namespace tileoverlap::testing
