// tileoverlap._core: the C++ library as the Python package sees it.

#include <dlpack/dlpack.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bindings.hpp"
#include "tileoverlap/core/env.hpp"
#include "tileoverlap/core/version.hpp"

namespace tileoverlap::python {
namespace {

nb::dict build_info() {
  nb::dict info;
#if defined(__clang__)
  info["compiler"] = nb::str(__VERSION__);  // says "Clang" itself
#else
  info["compiler"] = nb::str("gcc " __VERSION__);
#endif
  info["cplusplus"] = nb::int_(static_cast<long>(__cplusplus));
  info["dlpack"] = nb::str((std::to_string(DLPACK_MAJOR_VERSION) + "." + std::to_string(DLPACK_MINOR_VERSION)).c_str());
  info["nanobind"] = nb::str((std::to_string(NB_VERSION_MAJOR) + "." + std::to_string(NB_VERSION_MINOR)).c_str());
  info["cuda"] = nb::bool_(kWithCuda);
  info["nvshmem"] = nb::bool_(kWithNvshmem);
#if defined(NDEBUG)
  info["assertions"] = nb::bool_(false);
#else
  info["assertions"] = nb::bool_(true);
#endif
  return info;
}

nb::list env_variables() {
  nb::list result;
  for (const EnvVariable& variable : list_env()) {
    nb::dict entry;
    entry["name"] = nb::str(variable.name.c_str());
    entry["value"] = nb::str(variable.value.c_str());
    entry["is_set"] = nb::bool_(variable.is_set);
    entry["meaning"] = nb::str(variable.meaning.c_str());
    result.append(entry);
  }
  return result;
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The C++ library; use the package tileoverlap, which checks and documents what is passed here.";
  // Interpreter shutdown leaves objects behind that only a user's globals keep alive: not ours to warn about.
  nb::set_leak_warnings(false);
  module.attr("__version__") = nb::str(kVersion);
  module.def("build_info", &build_info);
  module.def("list_env", &env_variables);
  module.def("wait_limit_s", [] { return static_cast<double>(Env::read().timeout_ns) * 1e-9; });
  bind_errors(module);
  bind_tensor(module);
  bind_routing(module);
  bind_plan(module);
  bind_predict(module);
  bind_transport(module);
  bind_execute(module);
  bind_bench(module);
}

}  // namespace tileoverlap::python
