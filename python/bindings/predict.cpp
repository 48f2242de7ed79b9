// Stage predict: how long an operator will take.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "tileoverlap/predict/choose_split.hpp"
#include "tileoverlap/predict/predict.hpp"

namespace tileoverlap::python {
namespace {

void bind_rates(nb::module_& module) {
  nb::class_<MeasuredGemm>(module, "MeasuredGemm")
      .def(
          "__init__",
          [](MeasuredGemm* self, int64_t rows, int32_t experts, int64_t k, int64_t n, int32_t tile_m, int32_t tile_n,
             double us) { new (self) MeasuredGemm{rows, experts, k, n, tile_m, tile_n, us}; },
          nb::arg("rows"), nb::arg("experts"), nb::arg("k"), nb::arg("n"), nb::arg("tile_m"), nb::arg("tile_n"),
          nb::arg("us"))
      .def_ro("rows", &MeasuredGemm::rows)
      .def_ro("experts", &MeasuredGemm::experts)
      .def_ro("k", &MeasuredGemm::k)
      .def_ro("n", &MeasuredGemm::n)
      .def_ro("tile_m", &MeasuredGemm::tile_m)
      .def_ro("tile_n", &MeasuredGemm::tile_n)
      .def_ro("us", &MeasuredGemm::us);
  nb::class_<GpuRates>(module, "GpuRates")
      .def(nb::init<>())
      .def_rw("device", &GpuRates::device)
      .def_rw("capability", &GpuRates::capability)
      .def_rw("sms", &GpuRates::sms)
      .def_rw("matmul_tflops", &GpuRates::matmul_tflops)
      .def_rw("memory_gbs", &GpuRates::memory_gbs)
      .def_rw("clock_relief", &GpuRates::clock_relief)
      .def_rw("ship_gbs", &GpuRates::ship_gbs)
      .def_rw("ship_share", &GpuRates::ship_share)
      .def_rw("lane_gbs", &GpuRates::lane_gbs)
      .def_rw("lanes", &GpuRates::lanes)
      .def_rw("gemm_slowdown", &GpuRates::gemm_slowdown)
      .def_rw("start_us", &GpuRates::start_us)
      .def_rw("tile_us", &GpuRates::tile_us)
      .def_rw("end_us", &GpuRates::end_us)
      .def_rw("gemms", &GpuRates::gemms)
      .def_rw("gemm_scale", &GpuRates::gemm_scale)
      .def_rw("source", &GpuRates::source);
  module.def("gpu_rates", &gpu_rates, nb::arg("device"), nb::arg("capability"), nb::arg("sms"));
  module.def(
      "gemm_us",
      [](const GpuRates& rates, int64_t bands, int32_t experts, int64_t k, int64_t n, int32_t tile_m, int32_t tile_n,
         int32_t sms) {
        return gemm_us(rates, {.bands = bands, .experts = experts, .k = k, .n = n, .tile_m = tile_m, .tile_n = tile_n},
                       sms);
      },
      nb::arg("rates"), nb::arg("bands"), nb::arg("experts"), nb::arg("k"), nb::arg("n"), nb::arg("tile_m"),
      nb::arg("tile_n"), nb::arg("sms"));
}

void bind_predictions(nb::module_& module) {
  nb::class_<PredictQuery>(module, "PredictQuery")
      .def(
          "__init__",
          [](PredictQuery* self, const Placement& placement, int64_t k, int64_t n, int64_t element_bytes,
             const PlanOptions& plan, int32_t sms, const GpuRates& gpu, double link_gbs, double link_latency_us,
             int32_t domain, double network_gbs, double network_latency_us) {
            new (self) PredictQuery{.placement = placement,
                                    .k = k,
                                    .n = n,
                                    .element_bytes = element_bytes,
                                    .plan = plan,
                                    .sms = sms,
                                    .gpu = gpu,
                                    .link = {.gbs = link_gbs,
                                             .latency_us = link_latency_us,
                                             .domain = domain,
                                             .network_gbs = network_gbs,
                                             .network_latency_us = network_latency_us}};
          },
          nb::kw_only(), nb::arg("placement"), nb::arg("k"), nb::arg("n"), nb::arg("element_bytes"), nb::arg("plan"),
          nb::arg("sms"), nb::arg("gpu"), nb::arg("link_gbs"), nb::arg("link_latency_us"), nb::arg("domain"),
          nb::arg("network_gbs"), nb::arg("network_latency_us"));
  nb::class_<RankPrediction>(module, "RankPrediction")
      .def_ro("rank", &RankPrediction::rank)
      .def_ro("gemm_us", &RankPrediction::gemm_us)
      .def_ro("copy_us", &RankPrediction::copy_us)
      .def_ro("gemm_end_us", &RankPrediction::gemm_end_us)
      .def_ro("sent_us", &RankPrediction::sent_us)
      .def_ro("landed_us", &RankPrediction::landed_us)
      .def_ro("shipped_bytes", &RankPrediction::shipped_bytes);
  nb::class_<Prediction>(module, "Prediction")
      .def_ro("comm_sms", &Prediction::comm_sms)
      .def_ro("gemm_us", &Prediction::gemm_us)
      .def_ro("copy_us", &Prediction::copy_us)
      .def_ro("serial_us", &Prediction::serial_us)
      .def_ro("overlapped_us", &Prediction::overlapped_us)
      .def_ro("behind_us", &Prediction::behind_us)
      .def_ro("ranks", &Prediction::ranks)
      .def_prop_ro("bound", &Prediction::bound)
      .def_prop_ro("reached", &Prediction::reached)
      .def_prop_ro("overlap", &Prediction::overlap);
  module.def(
      "predict",
      [](const PredictQuery& query, const RouteCounts& counts, const std::vector<int32_t>& comm_sms,
         const std::vector<int32_t>& ranks) { return predict(query, counts, comm_sms, ranks); },
      WithoutGil(), nb::arg("query"), nb::arg("counts"), nb::arg("comm_sms"), nb::arg("ranks"));
  nb::class_<SplitChoice>(module, "SplitChoice")
      .def_ro("comm_sms", &SplitChoice::comm_sms)
      .def_ro("overlapped_us", &SplitChoice::overlapped_us)
      .def_ro("serial_us", &SplitChoice::serial_us);
  module.def(
      "choose_split",
      [](const PredictQuery& query, const RouteCounts& counts, const std::vector<int32_t>& ranks) {
        return choose_split(query, counts, ranks);
      },
      WithoutGil(), nb::arg("query"), nb::arg("counts"), nb::arg("ranks"));
  module.def("even_counts", &even_counts, nb::arg("placement"), nb::arg("copies"));

  nb::dict layout = StructLayout(sizeof(PredictedPiece))
                        .TILEOVERLAP_FIELD(PredictedPiece, peer)
                        .TILEOVERLAP_FIELD(PredictedPiece, bytes)
                        .TILEOVERLAP_FIELD(PredictedPiece, ready_us)
                        .TILEOVERLAP_FIELD(PredictedPiece, begin_us)
                        .TILEOVERLAP_FIELD(PredictedPiece, end_us)
                        .done();
  module.attr("predicted_piece_layout") = layout;
  nb::class_<PredictedRank>(module, "PredictedRank")
      .def("band_us",
           [](nb::handle self) {
             return view_of(std::span<const double>(nb::cast<const PredictedRank&>(self).band_us), self);
           })
      .def("pieces", [](nb::handle self) { return bytes_of(nb::cast<const PredictedRank&>(self).pieces, self); });
  module.def("predict_rank", &predict_rank, WithoutGil(), nb::arg("query"), nb::arg("counts"), nb::arg("comm_sms"),
             nb::arg("rank"));
}

}  // namespace

void bind_predict(nb::module_& module) {
  bind_rates(module);
  bind_predictions(module);
}

}  // namespace tileoverlap::python
