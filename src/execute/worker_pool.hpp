#pragma once
// Threads that run one job at a time, all of them, again and again.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tileoverlap {

class WorkerPool {
 public:
  // `name` (at most 12 characters) is what debuggers show for the threads, followed by their number.
  // Throws Error when the system has no thread to give.
  WorkerPool(const std::string& name, int32_t threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int32_t threads() const { return static_cast<int32_t>(threads_.size()); }

  // A job under way: waits for its end when destroyed, so that what the job borrows from the stack outlives it.
  class Job {
   public:
    explicit Job(WorkerPool& pool) : pool_(pool) {}
    ~Job() { join(); }
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;
    void join() { pool_.join(); }

   private:
    WorkerPool& pool_;
  };
  // Every thread calls job(worker), worker = 0 .. threads-1. Jobs must not throw. One job at a time.
  [[nodiscard]] Job start(std::function<void(int32_t)> job);
  void launch(std::function<void(int32_t)> job);  // start without a guard: join() is the caller's
  void join();  // waits until all threads have left the job; at once when there is none

 private:
  void work(int32_t worker);
  void stop();

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::function<void(int32_t)> job_;
  uint64_t generation_ = 0;
  int32_t running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tileoverlap
