// Stages plan and dispatch: what is known before anything runs.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "tensor.hpp"
#include "tileoverlap/dispatch/copy_index.hpp"
#include "tileoverlap/plan/capacity.hpp"
#include "tileoverlap/plan/check.hpp"
#include "tileoverlap/plan/plan.hpp"
#include "tileoverlap/plan/tile_arrays.hpp"

namespace tileoverlap::python {
namespace {

std::span<const int64_t> span_of(const std::vector<int64_t>& values) { return values; }

void bind_options(nb::module_& module) {
  nb::class_<PlanOptions>(module, "PlanOptions")
      .def(
          "__init__",
          [](PlanOptions* self, int32_t tile_m, int32_t tile_n, const std::string& layout, int32_t bands_per_segment,
             int32_t group) {
            new (self) PlanOptions{tile_m, tile_n, parse_layout(layout), bands_per_segment, group};
          },
          nb::kw_only(), nb::arg("tile_m"), nb::arg("tile_n"), nb::arg("layout"), nb::arg("bands_per_segment"),
          nb::arg("group"))
      .def_ro("tile_m", &PlanOptions::tile_m)
      .def_ro("tile_n", &PlanOptions::tile_n)
      .def_prop_ro("layout", [](const PlanOptions& self) { return std::string(name(self.layout)); })
      .def_ro("bands_per_segment", &PlanOptions::bands_per_segment)
      .def_ro("group", &PlanOptions::group)
      .def("__repr__", [](const PlanOptions& self) { return repr(self); });
}

void bind_structs(nb::module_& module) {
  nb::dict layouts;
  layouts["experts"] = StructLayout(sizeof(ExpertRows))
                           .TILEOVERLAP_FIELD(ExpertRows, expert)
                           .TILEOVERLAP_FIELD(ExpertRows, first_band)
                           .TILEOVERLAP_FIELD(ExpertRows, bands)
                           .TILEOVERLAP_FIELD(ExpertRows, remote_bands)
                           .TILEOVERLAP_FIELD(ExpertRows, row_begin)
                           .TILEOVERLAP_FIELD(ExpertRows, rows)
                           .TILEOVERLAP_FIELD(ExpertRows, valid_rows)
                           .done();
  layouts["runs"] = StructLayout(sizeof(Run))
                        .TILEOVERLAP_FIELD(Run, expert)
                        .TILEOVERLAP_FIELD(Run, owner)
                        .TILEOVERLAP_FIELD(Run, row_begin)
                        .TILEOVERLAP_FIELD(Run, row_count)
                        .TILEOVERLAP_FIELD(Run, remote_row)
                        .done();
  layouts["order"] = StructLayout(sizeof(ScheduledBand))
                         .TILEOVERLAP_FIELD(ScheduledBand, band)
                         .TILEOVERLAP_FIELD(ScheduledBand, expert)
                         .TILEOVERLAP_FIELD(ScheduledBand, group_begin)
                         .TILEOVERLAP_FIELD(ScheduledBand, group_size)
                         .done();
  layouts["segments"] = StructLayout(sizeof(Segment))
                            .TILEOVERLAP_FIELD(Segment, first_band)
                            .TILEOVERLAP_FIELD(Segment, last_band)
                            .TILEOVERLAP_FIELD(Segment, peer)
                            .TILEOVERLAP_FIELD(Segment, expert)
                            .TILEOVERLAP_FIELD(Segment, row_begin)
                            .TILEOVERLAP_FIELD(Segment, row_count)
                            .TILEOVERLAP_FIELD(Segment, remote_row)
                            .done();
  module.attr("struct_layouts") = layouts;
}

// A plan's array of structs, or of rows, without a copy.
template <auto Member>
auto structs(nb::handle self) {
  return bytes_of((*nb::cast<const Plan&>(self)).*Member, self);
}
template <auto Member>
auto rows(nb::handle self) {
  return view_of(span_of((*nb::cast<const Plan&>(self)).*Member), self);
}
template <auto Member>
auto number(const Plan& plan) {
  return (*plan).*Member;
}

void bind_plan_class(nb::module_& module) {
  nb::class_<Plan>(module, "Plan")
      .def_prop_ro("placement", &number<&PlanData::placement>)
      .def_prop_ro("options", &number<&PlanData::options>)
      .def_prop_ro("rank", &number<&PlanData::rank>)
      .def_prop_ro("world", &Plan::world)
      .def_prop_ro("n", &number<&PlanData::n>)
      .def_prop_ro("rows", &number<&PlanData::rows>)
      .def_prop_ro("gemm_rows", &number<&PlanData::gemm_rows>)
      .def_prop_ro("valid_rows", &number<&PlanData::valid_rows>)
      .def_prop_ro("staging_rows", &number<&PlanData::staging_rows>)
      .def_prop_ro("tiles_n", &number<&PlanData::tiles_n>)
      .def_prop_ro("fingerprint", &number<&PlanData::fingerprint>)
      .def_prop_ro("bands", &Plan::bands)
      .def_prop_ro("tiles", &Plan::tiles)
      .def("experts", &structs<&PlanData::experts>)
      .def("runs", &structs<&PlanData::runs>)
      .def("order", &structs<&PlanData::order>)
      .def("segments", &structs<&PlanData::segments>)
      .def("dispatched_rows", &rows<&PlanData::dispatched_rows>)
      .def("staging_row", &rows<&PlanData::staging_row>)
      .def("dispatch_row", &rows<&PlanData::dispatch_row>)
      .def("returned_rows", &rows<&PlanData::returned_rows>)
      .def("copies_of", &rows<&PlanData::copies_of>)
      .def(
          "tile_at",
          [](const Plan& plan, int64_t task) {
            const TileCoord tile = tile_at(plan->order.data(), task, plan->tiles_n);
            return std::tuple(tile.band, tile.tile_n, tile.expert);
          },
          nb::arg("task"), "(band, tile_n, expert) of tile `task`, which must lie in 0 .. tiles-1.")
      .def("__repr__", &Plan::repr);

  module.def("make_plan", &make_plan, nb::arg("placement"), nb::arg("rank"), nb::arg("counts"), nb::arg("n"),
             nb::arg("options"));
  module.def("check_plan", &check_plan, nb::arg("plan"), nb::arg("counts"));
  module.def(
      "check_plans",
      [](const std::vector<Plan>& plans, const RouteCounts& counts) { return check_plans(plans, counts); },
      nb::arg("plans"), nb::arg("counts"));
  module.def(
      "tile_arrays",
      [](const Plan& plan) {
        TileArrays arrays = tile_arrays(plan);
        nb::dict result;
        result["tile"] = to_array(std::move(arrays.tile));
        result["expert"] = to_array(std::move(arrays.expert));
        result["dest_rank"] = to_array(std::move(arrays.dest_rank));
        result["row_begin"] = to_array(std::move(arrays.row_begin));
        result["valid_rows"] = to_array(std::move(arrays.valid_rows));
        result["remote_offset"] = to_array(std::move(arrays.remote_offset));
        return result;
      },
      nb::arg("plan"));
}

void bind_capacity(nb::module_& module) {
  nb::class_<Capacity>(module, "Capacity")
      .def(
          "__init__",
          [](Capacity* self, int64_t max_tokens, int32_t top_k, bool distinct) {
            new (self) Capacity{max_tokens, top_k, distinct};
          },
          nb::kw_only(), nb::arg("max_tokens"), nb::arg("top_k"), nb::arg("distinct"));
  nb::class_<SizeReport>(module, "SizeReport")
      .def_ro("staging_bytes", &SizeReport::staging_bytes)
      .def_ro("output_bytes", &SizeReport::output_bytes)
      .def_ro("input_bytes", &SizeReport::input_bytes)
      .def_ro("projected_bytes", &SizeReport::projected_bytes)
      .def_ro("flag_bytes", &SizeReport::flag_bytes)
      .def_ro("counter_bytes", &SizeReport::counter_bytes)
      .def_prop_ro("total_bytes", &SizeReport::total_bytes);
  module.def("max_padded_bands", &max_padded_bands, nb::arg("experts"), nb::arg("owner_count"), nb::arg("capacity"),
             nb::arg("tile_m"));
  module.def("max_bands", &max_bands, nb::arg("placement"), nb::arg("rank"), nb::arg("capacity"), nb::arg("options"));
  module.def("max_rows", &max_rows, nb::arg("placement"), nb::arg("rank"), nb::arg("capacity"), nb::arg("options"));
  module.def("max_segments", &max_segments, nb::arg("placement"), nb::arg("rank"), nb::arg("capacity"),
             nb::arg("options"));
  module.def(
      "size_report",
      [](const Placement& placement, int32_t rank, const Capacity& capacity, const std::string& dtype, int64_t k,
         int64_t n, const PlanOptions& options) {
        return size_report(placement, rank, capacity, parse_dtype(dtype), k, n, options);
      },
      nb::arg("placement"), nb::arg("rank"), nb::arg("capacity"), nb::arg("dtype"), nb::arg("k"), nb::arg("n"),
      nb::arg("options"));
}

void bind_dispatch(nb::module_& module) {
  nb::class_<CopyIndex>(module, "CopyIndex")
      .def_ro("tokens", &CopyIndex::tokens)
      .def_ro("top_k", &CopyIndex::top_k)
      .def("peer",
           [](nb::handle self) {
             return view_of(std::span<const int32_t>(nb::cast<const CopyIndex&>(self).peer), self);
           })
      .def("dispatch_row",
           [](nb::handle self) { return view_of(span_of(nb::cast<const CopyIndex&>(self).dispatch_row), self); })
      .def("gather_row",
           [](nb::handle self) { return view_of(span_of(nb::cast<const CopyIndex&>(self).gather_row), self); });
  module.def(
      "make_copy_index", [](const Plan& plan, const Tensor& topk_ids) { return make_copy_index(plan, topk_ids.arg()); },
      nb::arg("plan"), nb::arg("topk_ids"));
}

}  // namespace

void bind_plan(nb::module_& module) {
  bind_options(module);
  bind_structs(module);
  bind_plan_class(module);
  bind_capacity(module);
  bind_dispatch(module);
}

}  // namespace tileoverlap::python
