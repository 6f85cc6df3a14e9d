# One GoogleTest program per folder of tests/ (foreshard_<folder>_test), each test known to ctest by its
# own name; the benchmarks (foreshard_bench); the test include_direction.
include(GoogleTest)
set(CMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE PRE_TEST)

file(GLOB_RECURSE support CONFIGURE_DEPENDS tests/support/*.cpp)
if(NOT support)
  file(CONFIGURE OUTPUT empty.cpp CONTENT "")
  set(support "${PROJECT_BINARY_DIR}/empty.cpp")
endif()
add_library(foreshard_test_support STATIC ${support})
target_link_libraries(foreshard_test_support
  PUBLIC foreshard_models foreshard_calibration GTest::gtest rapidcheck
  PRIVATE foreshard_flags)
target_compile_definitions(foreshard_test_support
  PUBLIC FORESHARD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
# These cost each test 1 to 2 s when they are not precompiled.
target_precompile_headers(foreshard_test_support PRIVATE <gtest/gtest.h> <rapidcheck.h>
                          <rapidcheck/gtest.h>)

foreach(folder IN ITEMS sim models calibration reports interop cli)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "tests/${folder}/*.cpp")
  if(NOT sources MATCHES "_test\\.cpp")
    continue()
  endif()
  set(test foreshard_${folder}_test)
  add_executable(${test} ${sources})
  target_link_libraries(${test} PRIVATE foreshard_test_support foreshard_${folder}
                        GTest::gtest_main foreshard_flags)
  target_precompile_headers(${test} REUSE_FROM foreshard_test_support)
  set_target_properties(${test} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  if(folder STREQUAL "cli")  # these run the program
    if(TARGET foreshard)
      add_dependencies(${test} foreshard)
    endif()
    set_source_files_properties(${sources} PROPERTIES
      COMPILE_DEFINITIONS "FORESHARD_PROGRAM=\"${FORESHARD_BIN_DIR}/foreshard\"")
  endif()
  # RapidCheck draws 200 cases per property; `./x check` asks for more through the same variable.
  set(draws "$ENV{RC_PARAMS}")
  if(NOT draws)
    set(draws "max_success=200")
  endif()
  gtest_discover_tests(${test} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
                       PROPERTIES ENVIRONMENT "RC_PARAMS=${draws}")
endforeach()

file(GLOB_RECURSE benches CONFIGURE_DEPENDS tests/bench/*_bench.cpp)
if(benches)
  add_executable(foreshard_bench ${benches})
  target_link_libraries(foreshard_bench
    PRIVATE foreshard_models foreshard_calibration benchmark::benchmark_main
            foreshard_flags)
  set_target_properties(foreshard_bench PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
endif()

add_test(NAME include_direction
         COMMAND "${CMAKE_COMMAND}" -D "ROOT=${PROJECT_SOURCE_DIR}"
                 -P "${PROJECT_SOURCE_DIR}/tests/include_direction.cmake")
