# One GoogleTest program per folder of tests/ (foreshard_<folder>_test), each test known to ctest by its
# own name, or by that of its suite; the benchmarks (foreshard_bench); the test include_direction.
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
# Tests run most of their time in the libraries: for their own code -O1 is enough, and it saves a fifth
# of their compile time.
target_compile_options(foreshard_test_support PUBLIC $<$<CONFIG:Release>:-O1>)
# These cost each test 1 to 2 s when they are not precompiled.
target_precompile_headers(foreshard_test_support PRIVATE <gtest/gtest.h> <rapidcheck.h>
                          <rapidcheck/gtest.h>)

set(folders sim models calibration reports interop planner cli tools)
if(TARGET foreshard_exec)
  list(APPEND folders exec)
  # Small programs that tests start as ranks: tests/exec/programs/<name>.cpp.
  file(GLOB programs CONFIGURE_DEPENDS tests/exec/programs/*.cpp)
  foreach(source IN LISTS programs)
    cmake_path(GET source STEM name)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE foreshard_engine foreshard_flags)
    set_target_properties(${name} PROPERTIES
                          RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/programs"
                          UNITY_BUILD OFF)  # a program uses namespaces
    list(APPEND test_programs ${name})
  endforeach()
  target_sources(null_engine PRIVATE tests/exec/device/planted_faults.cpp
                                     tests/exec/engine/engine_runs.cpp)
endif()
foreach(folder IN LISTS folders)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "tests/${folder}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/tests/exec/programs/")
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
    target_compile_definitions(${test} PRIVATE
      FORESHARD_PROGRAM="${FORESHARD_BIN_DIR}/foreshard")
    if(TARGET null_step_program)
      add_dependencies(${test} foreshard-null null_step_program null_fault_program)
      target_compile_definitions(${test} PRIVATE
        FORESHARD_NULL_STEP="${PROJECT_BINARY_DIR}/tests/programs/null_step_program"
        FORESHARD_NULL_FAULT="${PROJECT_BINARY_DIR}/tests/programs/null_fault_program")
    endif()
  endif()
  if(folder STREQUAL "exec")
    target_link_libraries(${test} PRIVATE foreshard_engine)
    add_dependencies(${test} foreshard-exec ${test_programs})
    target_compile_definitions(${test} PRIVATE
      FORESHARD_EXEC_PROGRAM="${FORESHARD_BIN_DIR}/foreshard-exec"
      FORESHARD_PROGRAM="${FORESHARD_BIN_DIR}/foreshard"
      FORESHARD_TEST_PROGRAMS="${PROJECT_BINARY_DIR}/tests/programs")
  endif()
  set(more)
  if(folder STREQUAL "exec" AND FORESHARD_SANITIZE)  # LibTorch never frees what it makes when it starts
    set(more PROPERTIES ENVIRONMENT_MODIFICATION "ASAN_OPTIONS=string_append::detect_leaks=0")
  endif()
  # Suites that share what takes long to make are one test of ctest, named after all of them; the
  # file that makes it says so: "// One process for the suites A B". Loading LibTorch takes a third of
  # a second: the suites of a file that starts no processes, and skips nothing, share it.
  set(others)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS "tests/${folder}/*.h")
  foreach(source IN LISTS headers sources)
    file(STRINGS "${source}" suites REGEX "^// One process for the suites ")
    string(REGEX REPLACE "^// One process for the suites " "" suites "${suites}")
    file(STRINGS "${source}" starts REGEX "/(child|run_fixture)\\.h\"|GTEST_SKIP")
    if(folder STREQUAL "exec" AND source MATCHES "_test\\.cpp$" AND NOT starts)
      file(STRINGS "${source}" suites REGEX "^(TEST|TEST_F|TEST_P|RC_GTEST_(FIXTURE_)?PROP)\\(")
      list(TRANSFORM suites REPLACE "^[A-Z_]+\\(([A-Za-z0-9]+).*" "\\1")
      list(REMOVE_DUPLICATES suites)
    endif()
    if(suites)
      string(REGEX REPLACE "[ ;]" "+" name "${suites}")
      string(REGEX REPLACE "([A-Za-z0-9]+)[+]?" "\\1.*:*/\\1.*:" filter "${name}")
      add_test(NAME "${name}" COMMAND ${test} "--gtest_filter=${filter}"
               WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
      if(more)
        set_tests_properties("${name}" ${more})
      endif()
      string(APPEND others ":${filter}")
    endif()
  endforeach()
  if(others)
    string(REGEX REPLACE "^:" "-" others "${others}")
    set(others TEST_FILTER "${others}")
  endif()
  gtest_discover_tests(${test} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" ${others}
                       DISCOVERY_TIMEOUT 300  # the first load of LibTorch from a cold disk
                       ${more})
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

# The round on a GPU, as its README says to run it, on the stand-in; cut off; and what it refuses.
find_program(FORESHARD_PYTHON python3)
if(FORESHARD_PYTHON AND TARGET foreshard_exec AND NOT FORESHARD_SANITIZE)  # which rounds spend minutes in
  add_test(NAME gpu_visits
           COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/exec/gpu/visits_test.py"
                   "${FORESHARD_BIN_DIR}")
  set_tests_properties(gpu_visits PROPERTIES COST 90 TIMEOUT 1800 ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1")
endif()

# The engine's CUDA half on the null GPU: every plan of a round, and planted faults.
if(FORESHARD_PYTHON AND TARGET foreshard_cuda AND TARGET foreshard-null)
  add_test(NAME engine_on_the_null_gpu
           COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/exec/gpu/null_gpu_test.py"
                   "${FORESHARD_BIN_DIR}" "${PROJECT_BINARY_DIR}/tests/programs/null_engine")
  set_tests_properties(engine_on_the_null_gpu PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1800
                       ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1")
endif()

# README.md and docs/: short, linked, and printing what they show (`tests/docs_test.py --help`).
if(FORESHARD_PYTHON)
  set(docs_test "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/docs_test.py")
  add_test(NAME docs_links COMMAND ${docs_test})
  if(NOT FORESHARD_SANITIZE)  # which rounds differently and takes minutes
    add_test(NAME docs_blocks COMMAND ${docs_test} "${FORESHARD_BIN_DIR}/foreshard")
    set_tests_properties(docs_blocks PROPERTIES TIMEOUT 1800)
  endif()
endif()

# The HTML report in a headless Chromium; skipped, with the reason, where there is none.
if(FORESHARD_PYTHON)
  foreach(part page page_answers page_layout)
    add_test(NAME ${part}_in_browser
             COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/reports/${part}_test.py"
                     "${FORESHARD_BIN_DIR}/foreshard")
  endforeach()
  add_test(NAME random_plans
           COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/cli/random_plans.py"
                   "${FORESHARD_BIN_DIR}/foreshard")
  add_test(NAME megatron_core
           COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/presets/megatron_core.py"
                   "${FORESHARD_BIN_DIR}")
  add_test(NAME planted_causes
           COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/reports/diagnose/planted.py"
                   "${FORESHARD_BIN_DIR}/foreshard")
  add_test(NAME serve
           COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/cli/serve_test.py"
                   "${FORESHARD_BIN_DIR}/foreshard")
  if(NOT FORESHARD_SANITIZE)  # whose runtime no wheel carries
    add_test(NAME wheel
             COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/export/wheel_test.py"
                     "${PROJECT_BINARY_DIR}")
    set_tests_properties(wheel PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600
                         ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1")
  endif()
  add_test(NAME app_in_browser
           COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/cli/app_test.py"
                   "${FORESHARD_BIN_DIR}/foreshard")
  set_tests_properties(page_in_browser page_answers_in_browser page_layout_in_browser serve
                       app_in_browser PROPERTIES COST 60 SKIP_RETURN_CODE 77 TIMEOUT 1800
                       ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1")
endif()

# What was edited beside a pack is packed again before it is committed; a type's name is one.
if(FORESHARD_PYTHON)
  add_test(NAME packs_are_current
           COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/cmake/packed.py" --check
                   "${PROJECT_SOURCE_DIR}/calibration" "${PROJECT_SOURCE_DIR}/reports"
                   "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/exec/gpu"
                   "${PROJECT_SOURCE_DIR}/interop" "${PROJECT_SOURCE_DIR}/models")
  add_test(NAME type_names
           COMMAND "${FORESHARD_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/type_names_test.py"
                   "${PROJECT_SOURCE_DIR}")
endif()

add_test(NAME include_direction
         COMMAND "${CMAKE_COMMAND}" -D "ROOT=${PROJECT_SOURCE_DIR}"
                 -P "${PROJECT_SOURCE_DIR}/tests/include_direction.cmake")

# Exported scripts under Python's torch, where there is one; else ctest shows the reason.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(TARGET foreshard AND Python3_Interpreter_FOUND)
  add_test(NAME ExportedScript.RunsAsForecast
           COMMAND "${Python3_EXECUTABLE}" tests/export/check.py "${FORESHARD_BIN_DIR}/foreshard"
                   --script --skip
           WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(ExportedScript.RunsAsForecast PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1800)
endif()
