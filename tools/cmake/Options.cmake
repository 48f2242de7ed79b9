# Every switch of the build, with the sentence that cmake-gui and `cmake -LH` show.

option(BUILD_SHARED_LIBS "Build libtileoverlap as a shared library." ON)

set(TILEOVERLAP_CUDA
    AUTO
    CACHE STRING "Compile the CUDA code: ON, OFF, or AUTO for ON when nvcc and a driver are found.")
set(TILEOVERLAP_NVSHMEM
    AUTO
    CACHE STRING "Look for NVSHMEM: ON (an error when it is missing), OFF, or AUTO for ON with CUDA when it is found.")
set(TILEOVERLAP_CUDA_ARCHITECTURES
    "80;90a-real"
    CACHE STRING "GPU architectures of the CUDA code that is not bound to one (kernels that are name their own).")
set(TILEOVERLAP_SANITIZE
    none
    CACHE STRING "Instrument own code: none, address (AddressSanitizer and UBSan) or thread (ThreadSanitizer).")
set_property(CACHE TILEOVERLAP_CUDA TILEOVERLAP_NVSHMEM PROPERTY STRINGS ON OFF AUTO)
set_property(CACHE TILEOVERLAP_SANITIZE PROPERTY STRINGS none address thread)

# scikit-build-core defines SKBUILD; only then is the extension module the point of the build.
if(SKBUILD)
  set(tileoverlap_python_default ON)
else()
  set(tileoverlap_python_default OFF)
endif()
option(TILEOVERLAP_BUILD_PYTHON "Build the Python extension module (needs nanobind)." ${tileoverlap_python_default})
option(TILEOVERLAP_BUILD_TESTS "Build the C++ tests (needs GoogleTest)." OFF)
option(TILEOVERLAP_BUILD_BENCH "Build the benchmarks (plan_bench needs Google Benchmark, gpu_* CUDA)." OFF)
option(TILEOVERLAP_WERROR "Turn warnings in own code into errors; the developer presets do." OFF)
option(TILEOVERLAP_CCACHE "Compile through ccache when it is found and this is the top-level project." ON)

foreach(option IN ITEMS TILEOVERLAP_CUDA TILEOVERLAP_NVSHMEM TILEOVERLAP_SANITIZE)
  get_property(allowed CACHE ${option} PROPERTY STRINGS)
  if(NOT ${option} IN_LIST allowed)
    list(JOIN allowed ", " allowed)
    message(FATAL_ERROR "${option} must be one of ${allowed}; got '${${option}}'")
  endif()
endforeach()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  # An unoptimised CPU executor is some twenty times slower, which reads like a hang.
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type." FORCE)
endif()

if(TILEOVERLAP_CCACHE AND PROJECT_IS_TOP_LEVEL)
  find_program(TILEOVERLAP_CCACHE_PROGRAM ccache DOC "ccache, used as the compiler launcher when found.")
  mark_as_advanced(TILEOVERLAP_CCACHE_PROGRAM)
  if(TILEOVERLAP_CCACHE_PROGRAM)
    foreach(language IN ITEMS CXX CUDA)
      if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
        set(CMAKE_${language}_COMPILER_LAUNCHER ${TILEOVERLAP_CCACHE_PROGRAM})
      endif()
    endforeach()
  endif()
endif()
