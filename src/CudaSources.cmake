# What the library is made of where it is built with CUDA. Included by CMakeLists.txt.

find_package(CUDAToolkit REQUIRED)

target_sources(
  tileoverlap
  PRIVATE bench/loop_back.cpp
          execute/choose_producer.cpp
          execute/cuda_engine.cpp
          execute/cuda_executor.cpp
          execute/cuda_layer.cpp
          execute/cuda_session.cpp
          execute/device_timeline.cpp
          execute/sm_share.cpp
          produce/gpu_producer.cpp
          transport/device_world.cpp)
# The runtime inside the library, for itself: a program may bring another one.
target_link_libraries(tileoverlap PRIVATE $<BUILD_INTERFACE:CUDA::cudart_static>)
target_link_options(tileoverlap PRIVATE -Wl,--exclude-libs,ALL)

# tileoverlap_kernels(NAME ARCHITECTURES FILES...): device code of one kind. Never relocatable (-rdc): with it ptxas gives
# up setmaxnreg and serialises wgmma.
function(tileoverlap_kernels name architectures)
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${include_dir})
  target_link_libraries(${name} PRIVATE dlpack::dlpack)
  target_compile_options(${name} PRIVATE --expt-relaxed-constexpr -Xptxas=-v)
  if(NOT BUILD_SHARED_LIBS)
    target_compile_definitions(${name} PRIVATE TILEOVERLAP_STATIC)
  endif()
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}" POSITION_INDEPENDENT_CODE ON
                                           CUDA_SEPARABLE_COMPILATION OFF)
  tileoverlap_own_code(${name})
  target_sources(tileoverlap PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()

tileoverlap_kernels(
  tileoverlap_kernels_any
  "${TILEOVERLAP_CUDA_ARCHITECTURES}"
  dispatch/index_copies.cu
  execute/peer_kernels.cu
  reduce/weighted_sum.cu)

# tileoverlap_say_built_for(TARGET ARCHITECTURES): what load_kernels names where a device is another one.
function(tileoverlap_say_built_for target architectures)
  string(REPLACE ";" ", " names "${architectures}")
  target_compile_definitions(${target} PRIVATE TILEOVERLAP_BUILT_FOR="${names}")
endfunction()
tileoverlap_say_built_for(tileoverlap_kernels_any "${TILEOVERLAP_CUDA_ARCHITECTURES}")

# The experts' GEMM: one CUTLASS instantiation a file, since one takes minutes and gigabytes.
tileoverlap_kernels(tileoverlap_kernels_sm80 "80;90-real" produce/instances/sm80_bf16_128x128.cu
                    produce/instances/sm80_fp16_128x128.cu)
tileoverlap_kernels(
  tileoverlap_kernels_sm90
  90a-real
  produce/instances/sm90_bf16_128x128.cu
  produce/instances/sm90_bf16_128x128_silu_gate.cu
  produce/instances/sm90_bf16_128x256.cu
  produce/instances/sm90_bf16_128x256_gelu.cu
  produce/instances/sm90_bf16_64x128.cu
  produce/instances/sm90_bf16_64x128_silu_gate.cu
  produce/instances/sm90_bf16_64x256.cu
  produce/instances/sm90_bf16_64x256_gelu.cu
  produce/instances/sm90_fp16_128x128.cu
  produce/instances/sm90_fp16_128x128_silu_gate.cu
  produce/instances/sm90_fp16_128x256.cu
  produce/instances/sm90_fp16_128x256_gelu.cu
  produce/instances/sm90_fp16_64x128.cu
  produce/instances/sm90_fp16_64x128_silu_gate.cu
  produce/instances/sm90_fp16_64x256.cu
  produce/instances/sm90_fp16_64x256_gelu.cu)
foreach(target IN ITEMS tileoverlap_kernels_sm80 tileoverlap_kernels_sm90)
  target_link_libraries(${target} PRIVATE CUTLASS::headers)
endforeach()

# For tests and benchmarks of what the library does not export: the same objects, and the library for the rest.
add_library(tileoverlap_internals STATIC EXCLUDE_FROM_ALL plan/build_pieces.cpp produce/gpu_producer.cpp)
foreach(kernels IN ITEMS any sm80 sm90)
  target_sources(tileoverlap_internals PRIVATE $<TARGET_OBJECTS:tileoverlap_kernels_${kernels}>)
endforeach()
target_include_directories(tileoverlap_internals PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(tileoverlap_internals PUBLIC tileoverlap::tileoverlap CUDA::cudart_static)
tileoverlap_own_code(tileoverlap_internals)
