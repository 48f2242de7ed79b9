# How tests are built and run: tileoverlap_stage_test(STAGE FILES...).

# A soak test of 10,000 calls takes minutes under ThreadSanitizer and seconds without.
if(TILEOVERLAP_SANITIZE STREQUAL "none")
  set(tileoverlap_test_timeout_s 300)
else()
  set(tileoverlap_test_timeout_s 900)
endif()

set(tileoverlap_test_environment "")
if(TILEOVERLAP_SANITIZE STREQUAL "address")
  set(tileoverlap_test_environment ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1)
elseif(TILEOVERLAP_SANITIZE STREQUAL "thread")
  # Without the first a lock-order report names only one of the two places.
  set(tileoverlap_test_environment TSAN_OPTIONS=second_deadlock_stack=1:halt_on_error=1)
endif()

# Adds the test binary STAGE_test; each of its cases becomes a ctest test with the label STAGE.
function(tileoverlap_stage_test stage)
  set(target ${stage}_test)
  add_executable(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE tileoverlap_test_support GTest::gmock GTest::gtest_main)
  tileoverlap_own_code(${target})
  # The library does the work; optimising the tests as far would cost a third more of their compile time.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  # PRE_TEST: cases are listed when ctest starts, so that a build neither runs a test binary nor waits for it.
  gtest_discover_tests(
    ${target}
    TEST_PREFIX ${stage}.
    DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60
    NO_PRETTY_VALUES # a parameter printed as bytes holds addresses: the name would change from run to run
    PROPERTIES LABELS ${stage} TIMEOUT ${tileoverlap_test_timeout_s} ENVIRONMENT "${tileoverlap_test_environment}")
endfunction()
