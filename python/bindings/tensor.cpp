#include "tensor.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bindings.hpp"
#include "tileoverlap/core/error.hpp"

namespace tileoverlap::python {
namespace {

constexpr const char* kPlain = "dltensor";
constexpr const char* kVersioned = "dltensor_versioned";

// The managed tensor of a capsule, which from now on belongs to the caller: under its new name the capsule's own
// destructor leaves it alone.
template <class Managed>
std::shared_ptr<Managed> take(nb::handle capsule, const char* name, const char* used_name) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  PyCapsule_SetName(capsule.ptr(), used_name);
  return {managed, [](Managed* pointer) {
            if (pointer->deleter != nullptr) pointer->deleter(pointer);
          }};
}

struct Loan {
  std::vector<int64_t> shape, strides;
  DLTensor tensor{};
  nb::object owner;
};

// A capsule's content that holds on to the Python object of a Tensor.
template <class Managed>
struct Export {
  Managed managed{};
  nb::object tensor;
};

template <class Managed>
Managed* make_export(nb::object tensor) {
  auto* content = new Export<Managed>;
  content->managed.dl_tensor = nb::cast<const Tensor&>(tensor).dl_tensor();
  content->managed.manager_ctx = content;
  content->managed.deleter = [](Managed* managed) {
    const nb::gil_scoped_acquire gil;  // consumers may let go from any thread
    delete static_cast<Export<Managed>*>(managed->manager_ctx);
  };
  content->tensor = std::move(tensor);
  return &content->managed;
}

template <class Managed>
nb::object make_capsule(Managed* managed, const char* name) {
  // A consumer renames the capsule it takes; one that nobody took gives its content back.
  PyObject* capsule = PyCapsule_New(managed, name, [](PyObject* unused) {
    const char* own_name = PyCapsule_GetName(unused);
    if (own_name == nullptr || std::string(own_name).starts_with("used_")) return;
    auto* content = static_cast<Managed*>(PyCapsule_GetPointer(unused, own_name));
    content->deleter(content);
  });
  return nb::steal(capsule);
}

nb::object export_plain(nb::object tensor) {
  return make_capsule(make_export<DLManagedTensor>(std::move(tensor)), kPlain);
}

nb::object export_versioned(nb::object tensor) {
  const bool read_only = nb::cast<const Tensor&>(tensor).read_only();
  auto* managed = make_export<DLManagedTensorVersioned>(std::move(tensor));
  managed->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed->flags = read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
  return make_capsule(managed, kVersioned);
}

}  // namespace

Tensor Tensor::from_capsule(nb::handle capsule, const std::string& argument) {
  Tensor result;
  if (PyCapsule_IsValid(capsule.ptr(), kVersioned)) {
    auto managed = take<DLManagedTensorVersioned>(capsule, kVersioned, "used_dltensor_versioned");
    // Other than the version and the deleter, nothing may be read of another major version.
    if (managed->version.major != DLPACK_MAJOR_VERSION) {
      throw InvalidArgument(argument + " came as DLPack " + std::to_string(managed->version.major) + "." +
                            std::to_string(managed->version.minor) + ", needed is version " +
                            std::to_string(DLPACK_MAJOR_VERSION));
    }
    result.tensor_ = &managed->dl_tensor;
    result.flags_ = managed->flags;
    result.loan_ = std::move(managed);
  } else if (PyCapsule_IsValid(capsule.ptr(), kPlain)) {
    auto managed = take<DLManagedTensor>(capsule, kPlain, "used_dltensor");
    result.tensor_ = &managed->dl_tensor;
    result.loan_ = std::move(managed);
  } else {
    throw InvalidArgument(argument + " gave no DLPack capsule from __dlpack__");
  }
  return result;
}

Tensor Tensor::from_memory(uintptr_t address, std::vector<int64_t> shape, std::vector<int64_t> strides,
                           DLDataType dtype, bool read_only, nb::object owner) {
  auto loan = std::make_shared<Loan>();
  loan->shape = std::move(shape);
  loan->strides = std::move(strides);
  loan->owner = std::move(owner);
  loan->tensor = DLTensor{.data = reinterpret_cast<void*>(address),
                          .device = {kDLCPU, 0},
                          .ndim = static_cast<int32_t>(loan->shape.size()),
                          .dtype = dtype,
                          .shape = loan->shape.data(),
                          .strides = loan->strides.data(),
                          .byte_offset = 0};
  Tensor result;
  result.tensor_ = &loan->tensor;
  result.flags_ = read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
  result.loan_ = std::move(loan);
  return result;
}

void bind_tensor(nb::module_& module) {
  nb::class_<Tensor>(module, "Tensor", "A tensor on loan: keeps the producer's memory alive while it lives.")
      .def_static("from_capsule", &Tensor::from_capsule, nb::arg("capsule"), nb::arg("argument"))
      .def_static(
          "from_memory",
          [](uintptr_t address, std::vector<int64_t> shape, std::vector<int64_t> strides, uint8_t code, uint8_t bits,
             bool read_only, nb::object owner) {
            return Tensor::from_memory(address, std::move(shape), std::move(strides), {code, bits, 1}, read_only,
                                       std::move(owner));
          },
          nb::arg("address"), nb::arg("shape"), nb::arg("strides"), nb::arg("code"), nb::arg("bits"),
          nb::arg("read_only"), nb::arg("owner").none())
      .def_prop_ro("read_only", &Tensor::read_only)
      .def_prop_ro("is_copy", &Tensor::is_copy)
      .def_static("export_plain", &export_plain, nb::arg("tensor"))
      .def_static("export_versioned", &export_versioned, nb::arg("tensor"))
      .def("__repr__", [](const Tensor& self) { return "Tensor(" + describe(self.dl_tensor()) + ")"; });
}

}  // namespace tileoverlap::python
