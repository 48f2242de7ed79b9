#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "tensor.hpp"
#include "tileoverlap/transport/device_world.hpp"
#include "tileoverlap/transport/in_process.hpp"
#include "tileoverlap/transport/mapped.hpp"
#include "tileoverlap/transport/nvshmem.hpp"
#include "tileoverlap/transport/tcp_gather.hpp"
#include "tileoverlap/transport/transport.hpp"

namespace tileoverlap::python {
namespace {

// An object that C++ may copy and let go of on any thread. After the interpreter nobody is left to give it back to.
std::shared_ptr<nb::object> shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* held) {
            if (!nb::is_alive()) return;
            const nb::gil_scoped_acquire gil;
            delete held;
          }};
}

HostAllGather all_gather_of(nb::object callable) {
  return [held = shared(std::move(callable))](std::span<const std::byte> mine) {
    const nb::gil_scoped_acquire gil;
    const nb::object result = (*held)(nb::bytes(mine.data(), mine.size()));
    std::vector<std::vector<std::byte>> messages;
    for (const nb::handle item : result) {
      const auto message = nb::cast<nb::bytes>(item);
      const auto* data = static_cast<const std::byte*>(message.data());
      messages.emplace_back(data, data + message.size());
    }
    return messages;
  };
}

// Ctrl-C reaches a thread that waits here only if it asks.
void raise_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

nb::list gather(HostAllGather& all_gather, const nb::bytes& mine) {
  std::vector<std::vector<std::byte>> messages;
  {
    const nb::gil_scoped_release released;
    messages = all_gather({static_cast<const std::byte*>(mine.data()), mine.size()});
  }
  nb::list result;
  for (const auto& message : messages) result.append(nb::bytes(message.data(), message.size()));
  return result;
}

auto zero_of(nb::object callable) {
  return [held = shared(std::move(callable))](std::byte* memory, size_t bytes) {
    const nb::gil_scoped_acquire gil;
    (*held)(reinterpret_cast<uintptr_t>(memory), bytes);
  };
}

void bind_nvshmem(nb::module_& module) {
  nb::class_<NvshmemWorld>(module, "NvshmemWorld")
      .def_prop_ro("rank", &NvshmemWorld::rank)
      .def_prop_ro("world", &NvshmemWorld::world)
      .def("transport", &NvshmemWorld::transport, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "group",
          [](NvshmemWorld& self, const std::vector<int32_t>& ranks, size_t nbytes, nb::object all_gather) {
            const HostAllGather gather = all_gather_of(std::move(all_gather));
            const nb::gil_scoped_release released;
            return self.group(ranks, nbytes, gather);
          },
          nb::arg("ranks"), nb::arg("nbytes"), nb::arg("all_gather"))
      .def("close", &NvshmemWorld::close, nb::call_guard<nb::gil_scoped_release>())
      .def("__repr__", &NvshmemWorld::repr);
  module.def(
      "start_nvshmem",
      [](int32_t rank, int32_t world, int32_t device, nb::object all_gather, int32_t ranks_on_device, bool map_peers,
         const std::vector<std::string>& libraries) {
        NvshmemOptions options{.rank = rank, .world = world, .device = device};
        options.all_gather = all_gather_of(std::move(all_gather));
        options.ranks_on_device = ranks_on_device;
        options.map_peers = map_peers;
        options.libraries = libraries;
        const nb::gil_scoped_release released;
        return start_nvshmem(options);
      },
      nb::kw_only(), nb::arg("rank"), nb::arg("world"), nb::arg("device"), nb::arg("all_gather"),
      nb::arg("ranks_on_device"), nb::arg("map_peers"), nb::arg("libraries"));
}

}  // namespace

void bind_transport(nb::module_& module) {
  nb::class_<Exchange>(module, "Exchange");
  nb::class_<HostAllGather>(module, "HostAllGather").def("__call__", &gather, nb::arg("mine"));
  nb::class_<Transport>(module, "Transport")
      .def_prop_ro("world", &Transport::world)
      .def_prop_ro("rank", &Transport::rank)
      .def_prop_ro("device",  // as __dlpack_device__ says it
                   [](const Transport& self) {
                     return std::tuple(static_cast<int32_t>(self.device().device_type), self.device().device_id);
                   })
      .def_prop_ro("ranks_on_device", &Transport::ranks_on_device)
      .def("open_exchange", &Transport::open_exchange)
      .def("__repr__", &Transport::repr);
  module.def("make_in_process_world", &make_in_process_world, nb::arg("world"));
  module.def("make_device_world", &make_device_world, nb::call_guard<nb::gil_scoped_release>(), nb::arg("devices"));
  module.def(
      "make_mapped_transport",
      [](int32_t rank, int32_t world, const std::vector<uintptr_t>& bases, size_t nbytes,
         std::tuple<int32_t, int32_t> device, int32_t ranks_on_device, nb::object all_gather, nb::object zero,
         nb::object owner) {
        MappedOptions options{.rank = rank, .world = world};
        options.device = {static_cast<DLDeviceType>(std::get<0>(device)), std::get<1>(device)};
        for (const uintptr_t base : bases) options.bases.push_back(reinterpret_cast<void*>(base));
        options.bytes = nbytes;
        options.ranks_on_device = ranks_on_device;
        if (!all_gather.is_none()) options.all_gather = all_gather_of(std::move(all_gather));
        if (!zero.is_none()) options.zero = zero_of(std::move(zero));
        options.owner = shared(std::move(owner));
        return make_mapped_transport(options);
      },
      nb::kw_only(), nb::arg("rank"), nb::arg("world"), nb::arg("bases"), nb::arg("nbytes"), nb::arg("device"),
      nb::arg("ranks_on_device"), nb::arg("all_gather").none(), nb::arg("zero").none(), nb::arg("owner").none());
  bind_nvshmem(module);
  module.def(
      "make_tcp_all_gather",
      [](int32_t rank, int32_t world, const std::string& address, int64_t limit_ns) {
        return make_tcp_all_gather(
            {.rank = rank, .world = world, .address = address, .limit_ns = limit_ns, .interrupt = raise_signals});
      },
      nb::call_guard<nb::gil_scoped_release>(), nb::kw_only(), nb::arg("rank"), nb::arg("world"), nb::arg("address"),
      nb::arg("limit_ns"));
  module.def(
      "gather_counts",
      [](Exchange& exchange, const Placement& placement, int32_t rank, const Tensor* topk_ids, int64_t limit_ns) {
        return gather_counts(exchange, placement, rank, arg_of(topk_ids), limit_ns);
      },
      nb::call_guard<nb::gil_scoped_release>(), nb::arg("exchange"), nb::arg("placement"), nb::arg("rank"),
      nb::arg("topk_ids").none(), nb::arg("limit_ns"));
}

}  // namespace tileoverlap::python
