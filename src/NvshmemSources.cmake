# NVSHMEM: a part of the library that knows no NVSHMEM, and a plugin that it loads on first use. Included by
# CMakeLists.txt.

target_sources(tileoverlap PRIVATE transport/nvshmem/hello.cpp transport/nvshmem/load_plugin.cpp
                                   transport/nvshmem/nvshmem_world.cpp)
target_link_libraries(tileoverlap PRIVATE ${CMAKE_DL_LIBS})

# NVSHMEM's device library is there for plain architectures, no "a" variants.
string(REPLACE "a" "" nvshmem_architectures "${TILEOVERLAP_CUDA_ARCHITECTURES}")
string(REPLACE "rel" "real" nvshmem_architectures "${nvshmem_architectures}")

add_library(tileoverlap_nvshmem MODULE transport/nvshmem/nvshmem_kernels.cu transport/nvshmem/nvshmem_link.cu
                                       transport/nvshmem/plugin.cu)
target_include_directories(tileoverlap_nvshmem PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_include_directories(tileoverlap_nvshmem SYSTEM PRIVATE ${NVSHMEM_INCLUDE_DIR})
target_compile_options(tileoverlap_nvshmem PRIVATE --expt-relaxed-constexpr)
tileoverlap_say_built_for(tileoverlap_nvshmem "${nvshmem_architectures}")
# A function may take no more registers than the tightest kernel that calls it: the consumer's, two CTAs of 512 threads
# an SM.
set_source_files_properties(transport/nvshmem/nvshmem_link.cu PROPERTIES COMPILE_OPTIONS "-maxrregcount=64")
# Its errors are the library's. Both NVSHMEM libraries by path: wheels have no unversioned names, and where the host
# library lies at run time is found by the library.
target_link_libraries(tileoverlap_nvshmem PRIVATE tileoverlap::tileoverlap CUDA::cudart_static
                                                  ${NVSHMEM_DEVICE_LIBRARY} ${NVSHMEM_HOST_LIBRARY})
set_target_properties(
  tileoverlap_nvshmem
  PROPERTIES CUDA_ARCHITECTURES "${nvshmem_architectures}"
             CUDA_SEPARABLE_COMPILATION ON
             CUDA_RESOLVE_DEVICE_SYMBOLS ON
             CUDA_RUNTIME_LIBRARY Static
             POSITION_INDEPENDENT_CODE ON
             BUILD_RPATH "$ORIGIN"
             INSTALL_RPATH "$ORIGIN"
             LIBRARY_OUTPUT_DIRECTORY $<TARGET_FILE_DIR:tileoverlap>)
target_link_options(tileoverlap_nvshmem PRIVATE
                    LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/transport/nvshmem/plugin.map)

target_sources(tileoverlap_internals PRIVATE transport/nvshmem/hello.cpp transport/nvshmem/load_plugin.cpp)
