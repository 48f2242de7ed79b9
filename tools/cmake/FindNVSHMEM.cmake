# Finds NVSHMEM: include/nvshmem.h, the versioned host library and the static device library.
#
# Looks in: NVSHMEM_ROOT (CMake or environment variable), the Python packages nvidia-nvshmem-cu13 and -cu12, the system.
# A copy that lacks one of the three is passed over, and the message names what it lacked: several packages ship a part
# of NVSHMEM for their own use. Sets NVSHMEM_FOUND, NVSHMEM_VERSION, NVSHMEM_INCLUDE_DIR, NVSHMEM_HOST_LIBRARY,
# NVSHMEM_DEVICE_LIBRARY. Wheels have no unversioned libnvshmem_host.so, so that name is never asked for.

include(FindPackageHandleStandardArgs)
include(${CMAKE_CURRENT_LIST_DIR}/PythonPackageDirs.cmake)

# Sets the result variables from ROOT, or appends what ROOT lacks to _nvshmem_looked.
macro(_nvshmem_try source root)
  if(NOT NVSHMEM_INCLUDE_DIR)
    set(_nvshmem_missing "")
    find_path(_nvshmem_include nvshmem.h PATHS ${root}/include ${root}/include/nvshmem NO_DEFAULT_PATH NO_CACHE)
    find_file(_nvshmem_host libnvshmem_host.so.3 PATHS ${root} PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu
              lib/aarch64-linux-gnu NO_DEFAULT_PATH NO_CACHE)
    find_file(_nvshmem_device libnvshmem_device.a PATHS ${root} PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu
              lib/aarch64-linux-gnu NO_DEFAULT_PATH NO_CACHE)
    if(NOT _nvshmem_include)
      list(APPEND _nvshmem_missing include/nvshmem.h)
    endif()
    if(NOT _nvshmem_host)
      list(APPEND _nvshmem_missing lib/libnvshmem_host.so.3)
    endif()
    if(NOT _nvshmem_device)
      list(APPEND _nvshmem_missing lib/libnvshmem_device.a)
    endif()
    if(_nvshmem_missing)
      list(JOIN _nvshmem_missing ", " _nvshmem_missing)
      string(APPEND _nvshmem_looked "\n  ${source} (${root}): lacks ${_nvshmem_missing}")
    else()
      set(NVSHMEM_INCLUDE_DIR ${_nvshmem_include})
      set(NVSHMEM_HOST_LIBRARY ${_nvshmem_host})
      set(NVSHMEM_DEVICE_LIBRARY ${_nvshmem_device})
    endif()
    unset(_nvshmem_include)
    unset(_nvshmem_host)
    unset(_nvshmem_device)
  endif()
endmacro()

set(_nvshmem_looked "")
set(NVSHMEM_INCLUDE_DIR "")
foreach(_nvshmem_root IN ITEMS "${NVSHMEM_ROOT}" "$ENV{NVSHMEM_ROOT}")
  if(_nvshmem_root)
    _nvshmem_try("NVSHMEM_ROOT" ${_nvshmem_root})
  endif()
endforeach()
# "nvidia" is a namespace that many wheels share; both CUDA majors unpack into nvidia/nvshmem.
tileoverlap_python_package_dirs(_nvshmem_namespaces nvidia)
foreach(_nvshmem_namespace IN LISTS _nvshmem_namespaces)
  if(EXISTS ${_nvshmem_namespace}/nvshmem)
    _nvshmem_try("Python package nvidia-nvshmem" ${_nvshmem_namespace}/nvshmem)
  endif()
endforeach()
foreach(_nvshmem_prefix IN LISTS CMAKE_PREFIX_PATH CMAKE_SYSTEM_PREFIX_PATH)
  # A prefix with no trace of NVSHMEM is not worth a line.
  file(GLOB _nvshmem_trace LIST_DIRECTORIES true ${_nvshmem_prefix}/include/nvshmem*
       ${_nvshmem_prefix}/lib*/libnvshmem* ${_nvshmem_prefix}/lib/*/libnvshmem*)
  if(_nvshmem_trace)
    _nvshmem_try("system" ${_nvshmem_prefix})
  endif()
endforeach()

if(NVSHMEM_INCLUDE_DIR)
  set(_nvshmem_header ${NVSHMEM_INCLUDE_DIR}/non_abi/nvshmem_version.h)
  if(EXISTS ${_nvshmem_header})
    foreach(_nvshmem_part IN ITEMS MAJOR MINOR PATCH)
      file(STRINGS ${_nvshmem_header} _nvshmem_line REGEX "NVSHMEM_VENDOR_${_nvshmem_part}_VERSION +[0-9]+" LIMIT_COUNT 1)
      string(REGEX MATCH "[0-9]+$" _nvshmem_${_nvshmem_part} "${_nvshmem_line}")
    endforeach()
    set(NVSHMEM_VERSION ${_nvshmem_MAJOR}.${_nvshmem_MINOR}.${_nvshmem_PATCH})
  endif()
endif()
if(_nvshmem_looked STREQUAL "")
  set(_nvshmem_looked "\n  NVSHMEM_ROOT, Python packages, system prefixes: no copy")
endif()
find_package_handle_standard_args(
  NVSHMEM
  REQUIRED_VARS NVSHMEM_INCLUDE_DIR NVSHMEM_HOST_LIBRARY NVSHMEM_DEVICE_LIBRARY
  VERSION_VAR NVSHMEM_VERSION
  REASON_FAILURE_MESSAGE
    "\nLooked in:${_nvshmem_looked}\nSet NVSHMEM_ROOT, or install it: pip install nvidia-nvshmem-cu13 (or -cu12 for CUDA 12)")
