# cmake -DPREFIX= -DSOURCE= -DWORK= -DBY=find_package|pkg_config -DCXX= [-DPKG_CONFIG=] -P: builds the consumer against the
# installed copy in PREFIX, away from the source tree, and runs it.

set(expected [[
tileoverlap [0-9.]+
expert 0: rows 0\.\.5
expert 1: rows 8\.\.13
]])

file(REMOVE_RECURSE ${WORK})
file(COPY ${SOURCE}/CMakeLists.txt ${SOURCE}/main.cpp DESTINATION ${WORK})

if(BY STREQUAL "find_package")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -G Ninja -S ${WORK} -B ${WORK}/build -DCMAKE_CXX_COMPILER=${CXX} -Dtileoverlap_ROOT=${PREFIX}
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build COMMAND_ERROR_IS_FATAL ANY)
  set(program ${WORK}/build/consumer)
else()
  file(GLOB_RECURSE pc ${PREFIX}/tileoverlap.pc)
  cmake_path(GET pc PARENT_PATH pc_dir)
  set(ENV{PKG_CONFIG_PATH} ${pc_dir})
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs tileoverlap OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  execute_process(COMMAND ${PKG_CONFIG} --variable=libdir tileoverlap OUTPUT_VARIABLE libdir
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(program ${WORK}/consumer)
  execute_process(COMMAND ${CXX} -std=c++20 ${WORK}/main.cpp -o ${program} ${flags} -Wl,-rpath,${libdir}
                  COMMAND_ERROR_IS_FATAL ANY)
endif()

execute_process(COMMAND ${program} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
message("${output}")
if(NOT output MATCHES "^${expected}$")
  message(FATAL_ERROR "expected\n${expected}")
endif()
