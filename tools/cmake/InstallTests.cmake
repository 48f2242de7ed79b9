# Tests of what an installed copy offers, and of what is found on a machine, with the label install. Instrumented libraries are not for installing.

if(NOT TILEOVERLAP_SANITIZE STREQUAL "none")
  return()
endif()

set(tileoverlap_install_tests ${PROJECT_SOURCE_DIR}/cpp_tests/install)
set(tileoverlap_install_prefix ${PROJECT_BINARY_DIR}/install_test/prefix)

# Adds the test install.NAME, which runs SCRIPT of cpp_tests/install with the definitions that follow.
function(tileoverlap_install_test name script)
  add_test(NAME install.${name} COMMAND ${CMAKE_COMMAND} ${ARGN} -P ${tileoverlap_install_tests}/${script})
  set_tests_properties(install.${name} PROPERTIES LABELS install TIMEOUT 120)
endfunction()

tileoverlap_install_test(fresh_prefix install_to.cmake -DBUILD_DIR=${PROJECT_BINARY_DIR}
                         -DHEADERS=${PROJECT_SOURCE_DIR}/include -DPREFIX=${tileoverlap_install_prefix})
set_tests_properties(install.fresh_prefix PROPERTIES FIXTURES_SETUP installed_copy)

tileoverlap_install_test(find_nvshmem find_nvshmem.cmake -DMODULES=${PROJECT_SOURCE_DIR}/tools/cmake
                         -DWORK=${PROJECT_BINARY_DIR}/install_test/find_nvshmem)

set(ways find_package)
find_program(pkg_config NAMES pkg-config pkgconf NO_CACHE)
if(pkg_config)
  list(APPEND ways pkg_config)
else()
  message(STATUS "no pkg-config: the test install.pkg_config is left out")
endif()
foreach(way IN LISTS ways)
  tileoverlap_install_test(
    ${way} consume.cmake -DBY=${way} -DPREFIX=${tileoverlap_install_prefix} -DSOURCE=${tileoverlap_install_tests}
    -DWORK=${PROJECT_BINARY_DIR}/install_test/${way} -DCXX=${CMAKE_CXX_COMPILER} -DPKG_CONFIG=${pkg_config})
  set_tests_properties(install.${way} PROPERTIES FIXTURES_REQUIRED installed_copy)
endforeach()

if(BUILD_SHARED_LIBS)
  tileoverlap_install_test(exported_symbols exported_symbols.cmake -DNM=${CMAKE_NM} -DLIBRARY=$<TARGET_FILE:tileoverlap>)
endif()
