include_guard(GLOBAL)

# Sets OUT to the directories of the top-level Python package NAME, or to an empty list. The package is located, never
# imported: importing one of these may load a driver or take seconds.
function(tileoverlap_python_package_dirs out name)
  set(${out} "" PARENT_SCOPE)
  if(Python_EXECUTABLE)
    set(python ${Python_EXECUTABLE})
  else()
    find_package(Python3 QUIET COMPONENTS Interpreter)
    set(python ${Python3_EXECUTABLE})
  endif()
  if(NOT python)
    return()
  endif()
  execute_process(
    COMMAND
      ${python} -c
      "import sys, importlib.util as u; s = u.find_spec(sys.argv[1]); print(';'.join(s.submodule_search_locations or []) if s else '')"
      ${name}
    OUTPUT_VARIABLE dirs
    RESULT_VARIABLE failed
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(${out} "${dirs}" PARENT_SCOPE)
  endif()
endfunction()
