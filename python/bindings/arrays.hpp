#pragma once
// C++ vectors as numpy arrays.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace tileoverlap::python {

namespace nb = nanobind;

// A read-only view of memory that the Python object `owner` keeps alive.
template <class T>
auto view_of(std::span<const T> values, nb::handle owner) {
  return nb::ndarray<nb::numpy, const T, nb::ndim<1>>(values.data(), {values.size()}, owner);
}

// The same for structs, as bytes: Python gives them names by `layout_of`.
template <class Struct>
auto bytes_of(const std::vector<Struct>& values, nb::handle owner) {
  return view_of(std::span(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(Struct)), owner);
}

// An array that owns what the vector held.
template <class T>
nb::object to_array(std::vector<T>&& values) {
  auto* moved = new std::vector<T>(std::move(values));
  const nb::capsule owner(moved, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(moved->data(), {moved->size()}, owner));
}

// What numpy.dtype(...) takes to describe a struct.
class StructLayout {
 public:
  explicit StructLayout(size_t itemsize) { layout_["itemsize"] = nb::int_(itemsize); }
  StructLayout& field(const char* name, const char* format, size_t offset) {
    names_.append(nb::str(name));
    formats_.append(nb::str(format));
    offsets_.append(nb::int_(offset));
    return *this;
  }
  nb::dict done() {
    layout_["names"] = names_;
    layout_["formats"] = formats_;
    layout_["offsets"] = offsets_;
    return layout_;
  }

 private:
  nb::dict layout_;
  nb::list names_, formats_, offsets_;
};

// numpy's name for a member's type.
template <class Member>
constexpr const char* numpy_format() {
  static_assert(sizeof(Member) == 4 || sizeof(Member) == 8);
  if constexpr (std::is_floating_point_v<Member>) return sizeof(Member) == 8 ? "f8" : "f4";
  return sizeof(Member) == 8 ? "i8" : "i4";
}

}  // namespace tileoverlap::python

// One member of a struct, named in numpy as in C++.
#define TILEOVERLAP_FIELD(Struct, name) field(#name, numpy_format<decltype(Struct::name)>(), offsetof(Struct, name))
