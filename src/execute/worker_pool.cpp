#include "execute/worker_pool.hpp"

#include <pthread.h>

#include <system_error>

#include "core/text.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap {
namespace {

void name_this_thread(const std::string& name) {
  constexpr size_t kLongest = 15;  // the kernel's limit
  pthread_setname_np(pthread_self(), name.substr(0, kLongest).c_str());
}

}  // namespace

WorkerPool::WorkerPool(const std::string& name, int32_t threads) {
  threads_.reserve(static_cast<size_t>(threads));
  for (int32_t worker = 0; worker < threads; ++worker) {
    try {
      threads_.emplace_back([this, name, worker] {
        name_this_thread(name + std::to_string(worker));
        work(worker);
      });
    } catch (const std::system_error& error) {
      stop();
      throw Error(text("cannot start thread ", worker + 1, " of ", threads, " for ", name, ": ", error.what()));
    }
  }
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

WorkerPool::Job WorkerPool::start(std::function<void(int32_t)> job) {
  launch(std::move(job));
  return Job(*this);
}

void WorkerPool::launch(std::function<void(int32_t)> job) {
  {
    const std::scoped_lock lock(mutex_);
    job_ = std::move(job);
    running_ = threads();
    ++generation_;
  }
  wake_.notify_all();
}

void WorkerPool::join() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0; });
}

void WorkerPool::work(int32_t worker) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    lock.unlock();
    job_(worker);  // not replaced before join()
    lock.lock();
    if (--running_ == 0) done_.notify_all();
  }
}

}  // namespace tileoverlap
