# Which copy of NVSHMEM is found, and what is said where none is whole (cases D13.1, D13.2, D13.7).
#
#   cmake -DMODULES=tools/cmake -DWORK=FOLDER -P find_nvshmem.cmake

cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK})

set(all include/nvshmem.h lib/libnvshmem_host.so.3 lib/libnvshmem_device.a)

# A folder NAME that holds the files that follow; with a header it says that it is of VERSION.
function(make_copy name version)
  foreach(file IN LISTS ARGN)
    file(WRITE ${WORK}/${name}/${file} "")
  endforeach()
  if("include/nvshmem.h" IN_LIST ARGN)
    string(REPLACE "." ";" parts ${version})
    set(text "")
    foreach(part IN ITEMS MAJOR MINOR PATCH)
      list(POP_FRONT parts number)
      string(APPEND text "#define NVSHMEM_VENDOR_${part}_VERSION ${number}\n")
    endforeach()
    file(WRITE ${WORK}/${name}/include/non_abi/nvshmem_version.h "${text}")
  endif()
endfunction()

file(
  WRITE ${WORK}/find.cmake
  "list(PREPEND CMAKE_MODULE_PATH ${MODULES})\n"
  "find_package(NVSHMEM 3.4 REQUIRED)\n"
  "message(STATUS \"takes \${NVSHMEM_VERSION} \${NVSHMEM_HOST_LIBRARY}\")\n")

# Looks with the definitions that follow, and wants what it says to match EXPECTED. Copies of this machine do not count.
function(expect case expected)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=NVSHMEM_ROOT ${CMAKE_COMMAND} -DPython_EXECUTABLE=/bin/false ${ARGN} -P
            ${WORK}/find.cmake
    OUTPUT_VARIABLE said
    ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  if(NOT said MATCHES "${expected}")
    message(SEND_ERROR "${case}: expected \"${expected}\", got: ${said}")
  endif()
endfunction()

make_copy(wheel 3.4.5 ${all})
make_copy(newer 3.6.0 ${all})
make_copy(old 2.11.0 ${all})
make_copy(libraries_only 3.4.5 lib/libnvshmem_host.so.3)
make_copy(no_host 3.4.5 include/nvshmem.h lib/libnvshmem_device.a)
make_copy(plain_name 3.4.5 include/nvshmem.h lib/libnvshmem_device.a lib/libnvshmem_host.so)

expect("a wheel has the versioned name only" "takes 3.4.5 ${WORK}/wheel/lib/libnvshmem_host.so.3"
       -DNVSHMEM_ROOT=${WORK}/wheel)
expect("a part of a copy is passed over" "takes 3.4.5 ${WORK}/wheel/"
       "-DCMAKE_PREFIX_PATH=${WORK}/libraries_only\;${WORK}/wheel")
expect("the root comes first" "takes 3.6.0 ${WORK}/newer/" -DNVSHMEM_ROOT=${WORK}/newer
       -DCMAKE_PREFIX_PATH=${WORK}/wheel)
expect("a part alone" "libraries_only\\): lacks include/nvshmem.h, lib/libnvshmem_device.a"
       -DCMAKE_PREFIX_PATH=${WORK}/libraries_only)
expect("no host library" "no_host\\): lacks lib/libnvshmem_host.so.3" -DNVSHMEM_ROOT=${WORK}/no_host)
expect("an unversioned host library" "plain_name\\): lacks lib/libnvshmem_host.so.3" -DNVSHMEM_ROOT=${WORK}/plain_name)
expect("too old" "2\\.11\\.0.*3\\.4|3\\.4.*2\\.11\\.0" -DNVSHMEM_ROOT=${WORK}/old)
expect("none" "no copy.*pip install nvidia-nvshmem-cu13")
