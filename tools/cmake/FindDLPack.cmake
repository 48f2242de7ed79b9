# Finds the header dlpack/dlpack.h, version 1.0 or newer (older ones lack the fp8 codes and the versioned structs).
#
# Looks in: DLPACK_ROOT (CMake or environment variable), the Python package apache-tvm-ffi, the system. A header that is
# too old is passed over. Sets DLPack_FOUND, DLPack_VERSION, DLPACK_INCLUDE_DIR; defines dlpack::dlpack.

include(FindPackageHandleStandardArgs)
include(${CMAKE_CURRENT_LIST_DIR}/PythonPackageDirs.cmake)

# Sets OUT to MAJOR.MINOR of the header in DIR; headers before 0.7 carry a single DLPACK_VERSION instead.
function(_dlpack_read_version out dir)
  set(major 0)
  set(minor 0)
  file(STRINGS ${dir}/dlpack/dlpack.h lines REGEX "^#define DLPACK_(MAJOR|MINOR)_VERSION")
  foreach(line IN LISTS lines)
    if(line MATCHES "MAJOR_VERSION +([0-9]+)")
      set(major ${CMAKE_MATCH_1})
    elseif(line MATCHES "MINOR_VERSION +([0-9]+)")
      set(minor ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set(${out} ${major}.${minor} PARENT_SCOPE)
endfunction()

# Appends what was seen to _dlpack_looked and sets DLPACK_INCLUDE_DIR when DIRS hold a header that is new enough.
macro(_dlpack_try source)
  if(NOT DLPACK_INCLUDE_DIR)
    set(_dlpack_seen "no dlpack/dlpack.h")
    foreach(_dlpack_dir IN ITEMS ${ARGN})
      if(EXISTS ${_dlpack_dir}/dlpack/dlpack.h)
        _dlpack_read_version(_dlpack_version ${_dlpack_dir})
        if(_dlpack_version VERSION_GREATER_EQUAL 1.0)
          set(DLPACK_INCLUDE_DIR ${_dlpack_dir} CACHE PATH "Directory that holds dlpack/dlpack.h." FORCE)
          break()
        endif()
        set(_dlpack_seen "too old (below 1.0) in ${_dlpack_dir}")
      endif()
    endforeach()
    string(APPEND _dlpack_looked "\n  ${source}: ${_dlpack_seen}")
  endif()
endmacro()

# A cached directory may belong to an environment that is gone.
if(DLPACK_INCLUDE_DIR AND NOT EXISTS ${DLPACK_INCLUDE_DIR}/dlpack/dlpack.h)
  unset(DLPACK_INCLUDE_DIR CACHE)
endif()

set(_dlpack_looked "")
foreach(_dlpack_root IN ITEMS "${DLPACK_ROOT}" "$ENV{DLPACK_ROOT}")
  if(_dlpack_root)
    _dlpack_try("DLPACK_ROOT=${_dlpack_root}" ${_dlpack_root}/include ${_dlpack_root})
  endif()
endforeach()
if(NOT DLPACK_INCLUDE_DIR)
  tileoverlap_python_package_dirs(_dlpack_packages tvm_ffi)
  list(TRANSFORM _dlpack_packages APPEND /include)
  _dlpack_try("Python package apache-tvm-ffi" ${_dlpack_packages})
endif()
if(NOT DLPACK_INCLUDE_DIR)
  find_path(_dlpack_system dlpack/dlpack.h NO_CACHE)
  _dlpack_try("system include directories" ${_dlpack_system})
endif()

if(DLPACK_INCLUDE_DIR)
  _dlpack_read_version(DLPack_VERSION ${DLPACK_INCLUDE_DIR})
endif()
find_package_handle_standard_args(
  DLPack
  REQUIRED_VARS DLPACK_INCLUDE_DIR
  VERSION_VAR DLPack_VERSION
  REASON_FAILURE_MESSAGE
    "\nNeeded: dlpack/dlpack.h 1.0 or newer. Looked in:${_dlpack_looked}\nSet DLPACK_ROOT, or install it: pip install apache-tvm-ffi")
mark_as_advanced(DLPACK_INCLUDE_DIR)

if(DLPack_FOUND AND NOT TARGET dlpack::dlpack)
  add_library(dlpack::dlpack INTERFACE IMPORTED)
  target_include_directories(dlpack::dlpack INTERFACE ${DLPACK_INCLUDE_DIR})
endif()
