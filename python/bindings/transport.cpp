#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "tensor.hpp"
#include "tileoverlap/transport/in_process.hpp"
#include "tileoverlap/transport/transport.hpp"

namespace tileoverlap::python {

void bind_transport(nb::module_& module) {
  nb::class_<Exchange>(module, "Exchange");
  nb::class_<Transport>(module, "Transport")
      .def_prop_ro("world", &Transport::world)
      .def_prop_ro("rank", &Transport::rank)
      .def("open_exchange", &Transport::open_exchange)
      .def("__repr__", &Transport::repr);
  module.def("make_in_process_world", &make_in_process_world, nb::arg("world"));
  module.def(
      "gather_counts",
      [](Exchange& exchange, const Placement& placement, int32_t rank, const Tensor* topk_ids, int64_t limit_ns) {
        return gather_counts(exchange, placement, rank, arg_of(topk_ids), limit_ns);
      },
      nb::call_guard<nb::gil_scoped_release>(), nb::arg("exchange"), nb::arg("placement"), nb::arg("rank"),
      nb::arg("topk_ids").none(), nb::arg("limit_ns"));
}

}  // namespace tileoverlap::python
