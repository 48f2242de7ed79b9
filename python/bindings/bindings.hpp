#pragma once
// The parts of the extension module, one file a stage. They hold no logic: what both languages need is in C++, what
// only Python needs is in Python.

#include <nanobind/nanobind.h>

#include <cstdint>

namespace tileoverlap::python {

namespace nb = nanobind;

// For what may wait.
using WithoutGil = nb::call_guard<nb::gil_scoped_release>;

// Streams travel as addresses; 0 is the legacy default stream.
inline void* stream_at(uintptr_t address) { return reinterpret_cast<void*>(address); }

void bind_errors(nb::module_& module);
void bind_tensor(nb::module_& module);
void bind_routing(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_predict(nb::module_& module);
void bind_transport(nb::module_& module);
void bind_execute(nb::module_& module);
void bind_bench(nb::module_& module);

}  // namespace tileoverlap::python
