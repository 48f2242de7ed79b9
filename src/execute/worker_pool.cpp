#include "execute/worker_pool.hpp"

#include "execute/thread_name.hpp"

namespace tileoverlap {

WorkerPool::WorkerPool(const std::string& name, int32_t threads) {
  for (int32_t worker = 0; worker < threads; ++worker) {
    threads_.emplace_back([this, name, worker] {
      name_this_thread(name + std::to_string(worker));
      work(worker);
    });
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::start(std::function<void(int32_t)> job) {
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
