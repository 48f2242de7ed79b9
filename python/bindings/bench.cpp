// The parts of an operator, launched one by one for benchmarks.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstdint>
#include <string>

#include "bindings.hpp"
#include "tensor.hpp"
#include "tileoverlap/bench/loop_back.hpp"

namespace tileoverlap::python {
void bind_bench(nb::module_& module) {
  nb::enum_<Link>(module, "Link").value("hbm", Link::kHbm).value("pcie", Link::kPcie);
  nb::class_<LoopBack>(module, "LoopBack")
      .def(
          "begin", [](LoopBack& self, uintptr_t stream) { self.begin(stream_at(stream)); }, nb::arg("stream"))
      .def(
          "produce",
          [](LoopBack& self, const Tensor& rows, const Tensor& weights, const Tensor& output, int32_t sms, bool publish,
             uintptr_t stream) {
            self.produce({.rows = rows.arg(), .weights = weights.arg(), .output = output.arg()}, sms, publish,
                         stream_at(stream));
          },
          nb::arg("rows"), nb::arg("weights"), nb::arg("output"), nb::arg("sms"), nb::arg("publish"), nb::arg("stream"))
      .def(
          "ship",
          [](LoopBack& self, const Tensor& output, int32_t sms, bool wait, uintptr_t stream) {
            self.ship(output.arg(), sms, wait, stream_at(stream));
          },
          nb::arg("output"), nb::arg("sms"), nb::arg("wait"), nb::arg("stream"))
      .def(
          "overlapped",
          [](LoopBack& self, const Tensor& rows, const Tensor& weights, const Tensor& output, int32_t comm_sms,
             uintptr_t stream) {
            self.overlapped({.rows = rows.arg(), .weights = weights.arg(), .output = output.arg()}, comm_sms,
                            stream_at(stream));
          },
          nb::arg("rows"), nb::arg("weights"), nb::arg("output"), nb::arg("comm_sms"), nb::arg("stream"))
      .def(
          "stored",
          [](LoopBack& self, const Tensor& rows, const Tensor& weights, const Tensor& output, uintptr_t stream) {
            self.stored({.rows = rows.arg(), .weights = weights.arg(), .output = output.arg()}, stream_at(stream));
          },
          nb::arg("rows"), nb::arg("weights"), nb::arg("output"), nb::arg("stream"))
      .def("record", &LoopBack::record, nb::arg("on"))
      .def("timeline", &LoopBack::timeline, WithoutGil())
      .def(
          "wrong_bytes", [](LoopBack& self, const Tensor& output) { return self.wrong_bytes(output.arg()); },
          WithoutGil(), nb::arg("output"))
      .def("check", &LoopBack::check)
      .def_prop_ro("sms", &LoopBack::sms)
      .def_prop_ro("shipped_bytes", &LoopBack::shipped_bytes)
      .def_prop_ro("kernel", &LoopBack::kernel)
      .def_prop_ro("can_store", &LoopBack::can_store);
  module.def(
      "make_loop_back",
      [](const Plan& plan, const std::string& dtype, int64_t k, int32_t device, Link link) {
        return make_loop_back(plan, parse_dtype(dtype), k, device, link);
      },
      WithoutGil(), nb::arg("plan"), nb::arg("dtype"), nb::arg("k"), nb::arg("device"), nb::arg("link"));
}

}  // namespace tileoverlap::python
