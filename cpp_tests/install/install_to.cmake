# cmake -DBUILD_DIR= -DHEADERS= -DPREFIX= -P: installs the build into a fresh PREFIX and checks that no header was left out.

# Installed elsewhere first and then moved: what still names the first place fails in the tests that follow.
file(REMOVE_RECURSE ${PREFIX} ${PREFIX}.first)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX}.first COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${PREFIX}.first ${PREFIX})

file(GLOB_RECURSE headers RELATIVE ${HEADERS} ${HEADERS}/*.hpp)
foreach(header IN LISTS headers)
  if(NOT EXISTS ${PREFIX}/include/${header})
    message(SEND_ERROR "${header} is not installed: list it in src/CMakeLists.txt")
  endif()
endforeach()
