# Installs the library, its headers, a CMake package (find_package(tileoverlap CONFIG)) and a pkg-config file.
#
# The tree can be moved after installation: every path in it is relative to the file that names it.

include(CMakePackageConfigHelpers)

# Public headers include dlpack/dlpack.h. A copy of the one we were compiled with goes along, in a folder of its own so
# that it cannot take the place of another project's.
set(tileoverlap_dlpack_dir ${CMAKE_INSTALL_INCLUDEDIR}/tileoverlap/third_party)
install(FILES ${DLPACK_INCLUDE_DIR}/dlpack/dlpack.h DESTINATION ${tileoverlap_dlpack_dir}/dlpack)

install(
  TARGETS tileoverlap
  EXPORT tileoverlap-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# Not of the file set, whose headers are compiled alone: it needs the program's MPI.
install(FILES ${PROJECT_SOURCE_DIR}/include/tileoverlap/transport/mpi_gather.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tileoverlap/transport)

# Beside the library, which loads it.
if(TARGET tileoverlap_nvshmem)
  install(TARGETS tileoverlap_nvshmem LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

set(tileoverlap_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tileoverlap)
install(EXPORT tileoverlap-targets NAMESPACE tileoverlap:: DESTINATION ${tileoverlap_package_dir})
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/tileoverlap-config.cmake.in ${PROJECT_BINARY_DIR}/tileoverlap-config.cmake
  INSTALL_DESTINATION ${tileoverlap_package_dir} PATH_VARS tileoverlap_dlpack_dir)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/tileoverlap-config-version.cmake
  COMPATIBILITY SameMinorVersion) # as the SOVERSION
install(FILES ${PROJECT_BINARY_DIR}/tileoverlap-config.cmake ${PROJECT_BINARY_DIR}/tileoverlap-config-version.cmake
        DESTINATION ${tileoverlap_package_dir})

# pkg-config: from the folder of the .pc file back up to the prefix.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
cmake_path(ABSOLUTE_PATH pc_dir BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX} OUTPUT_VARIABLE pc_full_dir)
file(RELATIVE_PATH pc_prefix ${pc_full_dir} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_prefix ${pc_prefix})
set(pc_cflags "")
set(pc_libs "")
if(NOT BUILD_SHARED_LIBS)
  set(pc_cflags -DTILEOVERLAP_STATIC)
  set(pc_libs -pthread)
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/tileoverlap.pc.in ${PROJECT_BINARY_DIR}/tileoverlap.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tileoverlap.pc DESTINATION ${pc_dir})
