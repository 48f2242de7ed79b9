# Resolves TILEOVERLAP_CUDA into tileoverlap_with_cuda (ON/OFF) and tileoverlap_cuda_note (why), and enables the language.
#
# AUTO wants a driver as well as nvcc: a machine that cannot run CUDA code should not pay for compiling it.

set(tileoverlap_with_cuda OFF)
if(TILEOVERLAP_CUDA STREQUAL "OFF")
  set(tileoverlap_cuda_note "switched off")
  return()
endif()

set(nvcc_hints ${CUDAToolkit_ROOT}/bin $ENV{CUDAToolkit_ROOT}/bin $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin)
if(CMAKE_CUDA_COMPILER)
  set(nvcc ${CMAKE_CUDA_COMPILER})
elseif(DEFINED ENV{CUDACXX})
  find_program(nvcc NAMES $ENV{CUDACXX} NO_CACHE)
else()
  find_program(nvcc NAMES nvcc HINTS ${nvcc_hints} PATHS /usr/local/cuda/bin NO_CACHE)
endif()
find_program(nvidia_smi nvidia-smi NO_CACHE)
find_library(driver_library libcuda.so.1 NO_CACHE)
set(driver_found OFF)
if(nvidia_smi OR driver_library OR EXISTS /proc/driver/nvidia)
  set(driver_found ON)
endif()

if(NOT nvcc)
  set(tileoverlap_cuda_note "no nvcc")
  if(TILEOVERLAP_CUDA STREQUAL "ON")
    message(
      FATAL_ERROR
        "TILEOVERLAP_CUDA=ON needs nvcc. Looked in: CUDACXX, CUDAToolkit_ROOT, CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda/bin."
    )
  endif()
  return()
endif()
if(TILEOVERLAP_CUDA STREQUAL "AUTO" AND NOT driver_found)
  set(tileoverlap_cuda_note "nvcc found but no driver; TILEOVERLAP_CUDA=ON compiles all the same")
  return()
endif()

find_package(CUTLASS 4.2 QUIET)
if(NOT CUTLASS_FOUND)
  set(tileoverlap_cuda_note "nvcc found but no CUTLASS 4.2: pip install --no-deps nvidia-cutlass, or set CUTLASS_ROOT")
  if(TILEOVERLAP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TILEOVERLAP_CUDA=ON: ${tileoverlap_cuda_note}")
  endif()
  return()
endif()

set(CMAKE_CUDA_COMPILER ${nvcc} CACHE FILEPATH "CUDA compiler.")
# Each object library names its own architectures (a WGMMA kernel needs 90a and cannot take 90), so there is no default.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
  message(FATAL_ERROR "CUDA 12.0 or newer is needed (C++20, sm_90a); ${nvcc} is ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
# CMake 3.25.1 and older do not know that nvcc takes C++20; newer ones define these themselves.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(tileoverlap_with_cuda ON)
set(tileoverlap_cuda_note "nvcc ${CMAKE_CUDA_COMPILER_VERSION}, CUTLASS ${CUTLASS_VERSION}")
