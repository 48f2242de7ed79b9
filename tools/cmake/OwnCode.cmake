# What holds for targets made of our own sources and must not leak into anyone else's: language level, visibility,
# warnings, sanitizers. Linked through BUILD_INTERFACE, so that a static library's export does not name it.

add_library(tileoverlap_own_code INTERFACE)
target_compile_options(
  tileoverlap_own_code
  INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow>
            $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow>)

if(TILEOVERLAP_WERROR)
  target_compile_options(
    tileoverlap_own_code
    INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:-Werror>
              $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>)
endif()

# A finding ends the program: a test that goes on after one would count as passed.
if(TILEOVERLAP_SANITIZE STREQUAL "address")
  set(sanitizer_flags -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(TILEOVERLAP_SANITIZE STREQUAL "thread")
  set(sanitizer_flags -fsanitize=thread)
endif()
if(NOT TILEOVERLAP_SANITIZE STREQUAL "none")
  target_compile_options(tileoverlap_own_code INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${sanitizer_flags};-fno-omit-frame-pointer>)
  target_link_options(tileoverlap_own_code INTERFACE $<$<LINK_LANGUAGE:CXX>:${sanitizer_flags}>)
endif()

# Marks TARGET as our own code. Call it for every target that compiles a file of this repository.
function(tileoverlap_own_code target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tileoverlap_own_code>)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(
    ${target}
    PROPERTIES CXX_EXTENSIONS OFF
               CXX_VISIBILITY_PRESET hidden
               CUDA_STANDARD 20
               CUDA_STANDARD_REQUIRED ON
               CUDA_EXTENSIONS OFF
               CUDA_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON)
endfunction()
