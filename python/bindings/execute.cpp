// Executors, sessions, layers and what they record. Everything that may wait gives up the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "tensor.hpp"
#include "tileoverlap/execute/cpu_executor.hpp"
#include "tileoverlap/execute/cuda_executor.hpp"
#include "tileoverlap/execute/executor.hpp"
#include "tileoverlap/produce/tile_table.hpp"

namespace tileoverlap::python {
namespace {

void bind_timeline(nb::module_& module) {
  nb::list spans;
  for (int32_t span = 0; span <= static_cast<int32_t>(Span::kReduce); ++span) {
    spans.append(nb::str(name(static_cast<Span>(span))));
  }
  module.attr("spans") = spans;
  module.attr("event_layout") = StructLayout(sizeof(TimelineEvent))
                                    .TILEOVERLAP_FIELD(TimelineEvent, span)
                                    .TILEOVERLAP_FIELD(TimelineEvent, rank)
                                    .TILEOVERLAP_FIELD(TimelineEvent, worker)
                                    .TILEOVERLAP_FIELD(TimelineEvent, item)
                                    .TILEOVERLAP_FIELD(TimelineEvent, peer)
                                    .TILEOVERLAP_FIELD(TimelineEvent, begin_ns)
                                    .TILEOVERLAP_FIELD(TimelineEvent, end_ns)
                                    .done();
  nb::class_<Timeline>(module, "Timeline")
      .def("events", [](nb::handle self) { return bytes_of(nb::cast<const Timeline&>(self).events, self); })
      .def_ro("worker_names", &Timeline::worker_names);
  nb::class_<OverlapTimes>(module, "OverlapTimes")
      .def_ro("first_ns", &OverlapTimes::first_ns)
      .def_ro("gemm_end_ns", &OverlapTimes::gemm_end_ns)
      .def_ro("landed_ns", &OverlapTimes::landed_ns);
  module.def(
      "to_chrome_trace", [](const std::vector<Timeline>& timelines) { return to_chrome_trace(timelines); },
      nb::arg("timelines"));
  module.def(
      "overlap_times", [](const std::vector<Timeline>& timelines) { return overlap_times(timelines); },
      nb::arg("timelines"));
}

void bind_calls(nb::module_& module) {
  nb::class_<Calls>(module, "Calls")
      .def("synchronize", &Calls::synchronize, WithoutGil())
      .def("wait", &Calls::wait, WithoutGil(), nb::arg("limit_ns"))
      .def("check", &Calls::check)
      .def_prop_ro("rank", &Calls::rank)
      .def_prop_ro("epoch", &Calls::epoch)
      .def("sizes", &Calls::sizes)
      .def("timeline", &Calls::timeline)
      .def("__repr__", &Calls::repr);
}

// Weights as Python hands them down: one tensor (a list of one and `listed` false), a tensor an expert, or none.
class Weights {
 public:
  Weights(const std::vector<const Tensor*>& tensors, bool listed) : listed_(listed) {
    for (const Tensor* tensor : tensors) args_.push_back(arg_of(tensor));
  }
  WeightsArg arg() const {
    if (listed_) return std::span<const TensorArg>(args_);
    return args_.empty() ? WeightsArg() : WeightsArg(args_[0]);
  }

 private:
  std::vector<TensorArg> args_;
  bool listed_;
};

void bind_session(nb::module_& module) {
  nb::class_<Session, Calls>(module, "Session")
      .def(
          "run",
          [](Session& self, const Plan& plan, const Tensor& rows, const std::vector<const Tensor*>& weights,
             bool weights_listed, const Tensor& topk_ids, const Tensor& topk_weights, const Tensor& out, RunMode mode,
             uintptr_t stream) {
            const Weights experts(weights, weights_listed);
            self.run(plan, {.rows = rows.arg(),
                            .weights = experts.arg(),
                            .topk_ids = topk_ids.arg(),
                            .topk_weights = topk_weights.arg(),
                            .out = out.arg(),
                            .mode = mode,
                            .stream = stream_at(stream)});
          },
          WithoutGil(), nb::arg("plan"), nb::arg("rows"), nb::arg("weights"), nb::arg("weights_listed"),
          nb::arg("topk_ids"), nb::arg("topk_weights"), nb::arg("out"), nb::arg("mode"), nb::arg("stream") = 0);
}

void bind_layer(nb::module_& module) {
  nb::class_<MoeLayer, Calls>(module, "MoeLayer")
      .def(
          "forward",
          [](MoeLayer& self, const Tensor* x, const Tensor* topk_ids, const Tensor* topk_weights,
             const std::vector<const Tensor*>& up, bool up_listed, const std::vector<const Tensor*>& down,
             bool down_listed, const Tensor* out, RunMode mode, uintptr_t stream) {
            const Weights first(up, up_listed), second(down, down_listed);
            self.forward({.x = arg_of(x),
                          .topk_ids = arg_of(topk_ids),
                          .topk_weights = arg_of(topk_weights),
                          .up = first.arg(),
                          .down = second.arg(),
                          .out = arg_of(out),
                          .mode = mode,
                          .stream = stream_at(stream)});
          },
          WithoutGil(), nb::arg("x").none(), nb::arg("topk_ids").none(), nb::arg("topk_weights").none(), nb::arg("up"),
          nb::arg("up_listed"), nb::arg("down"), nb::arg("down_listed"), nb::arg("out").none(), nb::arg("mode"),
          nb::arg("stream") = 0);
}

void bind_executor(nb::module_& module) {
  nb::class_<Executor>(module, "Executor")
      .def(
          "prepare",
          [](Executor& self, const Placement& placement, const std::string& dtype, int64_t k, int64_t n, int32_t top_k,
             int64_t max_tokens, const PlanOptions& plan, int64_t timeout_ns, int64_t warmup_timeout_ns,
             bool record_timeline) {
            return self.prepare({.placement = placement,
                                 .dtype = parse_dtype(dtype),
                                 .k = k,
                                 .n = n,
                                 .top_k = top_k,
                                 .max_tokens = max_tokens,
                                 .plan = plan,
                                 .timeout_ns = timeout_ns,
                                 .warmup_timeout_ns = warmup_timeout_ns,
                                 .record_timeline = record_timeline});
          },
          nb::keep_alive<0, 1>(), WithoutGil(), nb::kw_only(), nb::arg("placement"), nb::arg("dtype"), nb::arg("k"),
          nb::arg("n"), nb::arg("top_k"), nb::arg("max_tokens"), nb::arg("plan"), nb::arg("timeout_ns"),
          nb::arg("warmup_timeout_ns"), nb::arg("record_timeline"))
      .def(
          "prepare_layer",
          [](Executor& self, const Placement& placement, const std::string& dtype, const std::string& expert,
             int64_t hidden, int64_t inner, int32_t top_k, int64_t max_tokens, const PlanOptions& plan,
             int64_t timeout_ns, int64_t warmup_timeout_ns, bool record_timeline) {
            return self.prepare_layer({.placement = placement,
                                       .dtype = parse_dtype(dtype),
                                       .expert = parse_expert_kind(expert),
                                       .hidden = hidden,
                                       .inner = inner,
                                       .top_k = top_k,
                                       .max_tokens = max_tokens,
                                       .plan = plan,
                                       .timeout_ns = timeout_ns,
                                       .warmup_timeout_ns = warmup_timeout_ns,
                                       .record_timeline = record_timeline});
          },
          nb::keep_alive<0, 1>(), WithoutGil(), nb::kw_only(), nb::arg("placement"), nb::arg("dtype"),
          nb::arg("expert"), nb::arg("hidden"), nb::arg("inner"), nb::arg("top_k"), nb::arg("max_tokens"),
          nb::arg("plan"), nb::arg("timeout_ns"), nb::arg("warmup_timeout_ns"), nb::arg("record_timeline"))
      .def("__repr__", &Executor::repr);

  module.def(
      "make_cpu_executor",
      [](std::shared_ptr<Transport> transport, int32_t producer_threads, int32_t consumer_threads,
         uint64_t shuffle_seed, int32_t max_delay_us, int32_t withhold_band, bool poison, uint64_t first_epoch) {
        return make_cpu_executor(std::move(transport), {.producer_threads = producer_threads,
                                                        .consumer_threads = consumer_threads,
                                                        .faults = {.shuffle_seed = shuffle_seed,
                                                                   .max_delay_us = max_delay_us,
                                                                   .withhold_band = withhold_band,
                                                                   .poison = poison,
                                                                   .first_epoch = first_epoch}});
      },
      nb::arg("transport"), nb::kw_only(), nb::arg("producer_threads"), nb::arg("consumer_threads"),
      nb::arg("shuffle_seed"), nb::arg("max_delay_us"), nb::arg("withhold_band"), nb::arg("poison"),
      nb::arg("first_epoch"));
}

void bind_cuda_executor(nb::module_& module) {
  nb::enum_<Transfer>(module, "Transfer").value("ship", Transfer::kShip).value("store", Transfer::kStore);
  nb::class_<CudaDevice>(module, "CudaDevice")
      .def_ro("number", &CudaDevice::number)
      .def_ro("name", &CudaDevice::name)
      .def_ro("capability", &CudaDevice::capability)
      .def_ro("sms", &CudaDevice::sms)
      .def_ro("memory_bytes", &CudaDevice::memory_bytes)
      .def_ro("bfloat16_tiles", &CudaDevice::bfloat16_tiles);
  module.def("cuda_devices", &cuda_devices, WithoutGil());
  module.def(
      "choose_tile",
      [](const std::string& device, int32_t capability, const std::string& dtype, int64_t rows, int32_t experts,
         int64_t k, int64_t n) {
        const TileChoice choice = choose_tile({.device = device,
                                               .capability = capability,
                                               .dtype = parse_dtype(dtype),
                                               .rows = rows,
                                               .experts = experts,
                                               .k = k,
                                               .n = n});
        return nb::make_tuple(choice.tile_m, choice.tile_n, choice.group, choice.source);
      },
      nb::kw_only(), nb::arg("device"), nb::arg("capability"), nb::arg("dtype"), nb::arg("rows"), nb::arg("experts"),
      nb::arg("k"), nb::arg("n"));
  module.def("why_no_cuda_device", &why_no_cuda_device, WithoutGil());
  module.def(
      "make_cuda_executor",
      [](std::shared_ptr<Transport> transport, int32_t sms, int32_t comm_sms, Transfer transfer, uint64_t shuffle_seed,
         int32_t max_delay_us, int32_t withhold_band, bool poison, uint64_t first_epoch) {
        return make_cuda_executor(std::move(transport), {.sms = sms,
                                                         .comm_sms = comm_sms,
                                                         .transfer = transfer,
                                                         .faults = {.shuffle_seed = shuffle_seed,
                                                                    .max_delay_us = max_delay_us,
                                                                    .withhold_band = withhold_band,
                                                                    .poison = poison,
                                                                    .first_epoch = first_epoch}});
      },
      nb::arg("transport"), nb::kw_only(), nb::arg("sms"), nb::arg("comm_sms"), nb::arg("transfer"),
      nb::arg("shuffle_seed"), nb::arg("max_delay_us"), nb::arg("withhold_band"), nb::arg("poison"),
      nb::arg("first_epoch"));
}

}  // namespace

void bind_execute(nb::module_& module) {
  nb::enum_<RunMode>(module, "RunMode").value("overlapped", RunMode::kOverlapped).value("serial", RunMode::kSerial);
  bind_timeline(module);
  bind_calls(module);
  bind_session(module);
  bind_layer(module);
  bind_executor(module);
  bind_cuda_executor(module);
}

}  // namespace tileoverlap::python
