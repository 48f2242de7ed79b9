# Finds the headers of CUTLASS 4.2 or newer (CUTLASS itself has no CMake package in its wheel).
#
# Looks in: CUTLASS_ROOT (CMake or environment variable: a source tree, or its include folder), the Python package
# nvidia-cutlass, the system. Sets CUTLASS_FOUND, CUTLASS_VERSION, CUTLASS_INCLUDE_DIR; defines CUTLASS::headers.

include(FindPackageHandleStandardArgs)
include(${CMAKE_CURRENT_LIST_DIR}/PythonPackageDirs.cmake)

tileoverlap_python_package_dirs(_cutlass_python_dirs cutlass_library)
list(TRANSFORM _cutlass_python_dirs APPEND /source)
find_path(
  CUTLASS_INCLUDE_DIR cutlass/cutlass.h
  HINTS ${CUTLASS_ROOT} $ENV{CUTLASS_ROOT} ${_cutlass_python_dirs}
  PATH_SUFFIXES include
  DOC "Directory that holds cutlass/cutlass.h.")

if(CUTLASS_INCLUDE_DIR AND EXISTS ${CUTLASS_INCLUDE_DIR}/cutlass/version.h)
  file(STRINGS ${CUTLASS_INCLUDE_DIR}/cutlass/version.h _cutlass_lines REGEX "^#define CUTLASS_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" _cutlass_numbers "${_cutlass_lines}")
  string(REPLACE ";" "." CUTLASS_VERSION "${_cutlass_numbers}")
endif()

find_package_handle_standard_args(
  CUTLASS
  REQUIRED_VARS CUTLASS_INCLUDE_DIR
  VERSION_VAR CUTLASS_VERSION
  REASON_FAILURE_MESSAGE "install it with `pip install --no-deps nvidia-cutlass`, or set CUTLASS_ROOT")

if(CUTLASS_FOUND AND NOT TARGET CUTLASS::headers)
  add_library(CUTLASS::headers INTERFACE IMPORTED)
  # Imported, so system headers: our warnings are not for them.
  set_target_properties(CUTLASS::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${CUTLASS_INCLUDE_DIR})
endif()
