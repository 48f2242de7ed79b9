#include "tileoverlap/execute/cpu_executor.hpp"

#include <limits>
#include <new>
#include <type_traits>

#include "core/text.hpp"
#include "execute/cpu_session.hpp"

namespace tileoverlap {
namespace {

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(std::shared_ptr<Transport> transport, const CpuOptions& options)
      : transport_(std::move(transport)), options_(options) {}

  std::unique_ptr<Session> prepare(const SessionOptions& options) override {
    return explained([&] { return make_cpu_session(transport_, options_, options); });
  }
  std::unique_ptr<MoeLayer> prepare_layer(const LayerOptions& options) override {
    return explained([&] { return make_cpu_layer(transport_, options_, options); });
  }
  std::string repr() const override {
    return text("CpuExecutor(", transport_->repr(), ", producer_threads=", options_.producer_threads,
                ", consumer_threads=", options_.consumer_threads, ")");
  }

 private:
  // An allocation that fails says neither whose it was nor why.
  template <class Make>
  std::invoke_result_t<Make> explained(Make make) const {
    try {
      return make();
    } catch (const std::bad_alloc&) {
      throw Error(
          text("rank ", transport_->rank(),
               " cannot allocate its workspace: max_tokens, the widths or the tiles are too large for this machine"
               " (size_report tells the bytes)"));
    }
  }

  std::shared_ptr<Transport> transport_;
  CpuOptions options_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(std::shared_ptr<Transport> transport, const CpuOptions& options) {
  if (transport == nullptr) throw InvalidArgument("transport is missing");
  if (transport->device().device_type != kDLCPU) {
    throw InvalidArgument(text("the CPU executor needs a transport with memory on the cpu, got ", transport->repr()));
  }
  for (const auto& [what, threads] :
       {std::pair{"producer_threads", options.producer_threads}, {"consumer_threads", options.consumer_threads}}) {
    constexpr int32_t kMost = 1024;
    if (threads < 1 || threads > kMost) throw InvalidArgument(text(what, " must lie in 1..", kMost, ", got ", threads));
  }
  if (options.faults.first_epoch > std::numeric_limits<uint64_t>::max() / 2) {
    throw InvalidArgument(text("first_epoch must be below 2^63, got ", options.faults.first_epoch));
  }
  if (options.faults.max_delay_us < 0) {
    throw InvalidArgument(text("max_delay_us must not be negative, got ", options.faults.max_delay_us));
  }
  return std::make_unique<CpuExecutor>(std::move(transport), options);
}

}  // namespace tileoverlap
