# Builds and runs cpp_tests/transport/mpi_gather_test.cpp on three ranks, where CMake finds an MPI.

find_package(MPI QUIET COMPONENTS CXX)
if(NOT MPI_CXX_FOUND)
  message(STATUS "no MPI: the test transport.mpi_gather is left out")
  return()
endif()

add_executable(mpi_gather_test transport/mpi_gather_test.cpp)
target_link_libraries(mpi_gather_test PRIVATE tileoverlap::tileoverlap MPI::MPI_CXX)
tileoverlap_own_code(mpi_gather_test)

# What Open MPI asks before it starts more ranks than there are cores, or ranks of root; others do not know it.
include(CheckCXXSymbolExists)
set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_CXX)
check_cxx_symbol_exists(OPEN_MPI mpi.h tileoverlap_mpi_is_open_mpi)
unset(CMAKE_REQUIRED_LIBRARIES)
set(mpi_options "")
if(tileoverlap_mpi_is_open_mpi)
  set(mpi_options --oversubscribe --allow-run-as-root)
endif()
add_test(NAME transport.mpi_gather COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 3 ${mpi_options}
                                           $<TARGET_FILE:mpi_gather_test>)
set_tests_properties(transport.mpi_gather PROPERTIES LABELS transport TIMEOUT 120 PASS_REGULAR_EXPRESSION "all well")
