#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "tensor.hpp"
#include "tileoverlap/routing/counts.hpp"
#include "tileoverlap/routing/placement.hpp"

namespace tileoverlap::python {
namespace {

using CountsIn = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<TensorArg> args_of(const std::vector<const Tensor*>& tensors) {
  std::vector<TensorArg> args;
  for (const Tensor* tensor : tensors) args.push_back(tensor->arg());
  return args;
}

}  // namespace

void bind_routing(nb::module_& module) {
  nb::class_<Placement>(module, "Placement")
      .def_static("even", &Placement::even, nb::arg("world"), nb::arg("experts"))
      .def_static("from_begins", &Placement::from_begins, nb::arg("expert_begin"))
      .def_prop_ro("world", &Placement::world)
      .def_prop_ro("experts", &Placement::experts)
      .def_prop_ro("expert_begin", &Placement::expert_begin)
      .def("rank_of", &Placement::rank_of, nb::arg("expert"))
      .def("__repr__", &Placement::repr);

  nb::class_<RouteCounts>(module, "RouteCounts")
      .def(
          "__init__",
          [](RouteCounts* self, const Placement& placement, const CountsIn& counts) {
            new (self) RouteCounts(placement, std::vector<int32_t>(counts.data(), counts.data() + counts.size()));
          },
          nb::arg("placement"), nb::arg("counts"))
      .def_prop_ro("world", &RouteCounts::world)
      .def_prop_ro("experts", &RouteCounts::experts)
      .def("values", [](nb::handle self) { return view_of(nb::cast<const RouteCounts&>(self).values(), self); })
      .def("copies_of", &RouteCounts::copies_of, nb::arg("owner"))
      .def("__repr__", &RouteCounts::repr);

  module.def(
      "count_routes",
      [](const Placement& placement, const std::vector<const Tensor*>& topk_ids) {
        return count_routes(placement, args_of(topk_ids));
      },
      nb::arg("placement"), nb::arg("topk_ids"));
}

}  // namespace tileoverlap::python
