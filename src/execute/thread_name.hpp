#pragma once
// Names for threads, so that a debugger or `top -H` tells who waits.

#include <pthread.h>

#include <string>

namespace tileoverlap {

inline void name_this_thread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());  // the kernel's limit
}

}  // namespace tileoverlap
