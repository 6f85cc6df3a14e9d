# One libFuzzer program per tests/fuzz/<name>_fuzz.cpp, each defining LLVMFuzzerTestOneInput. The libraries
# are built with coverage too (FORESHARD_SANITIZE holds fuzzer-no-link).
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR " libFuzzer needs clang++; install it with: sudo apt-get install clang "
                      "libclang-rt-dev, then: cmake --preset fuzz")
endif()

# The readers of checkpoints are the engine's, but need no Torch, which is not looked for here.
add_library(foreshard_fuzz_state STATIC
  exec/state/checkpoint_index.cpp exec/state/durable_file.cpp exec/state/safetensors.cpp
  exec/state/training_state.cpp)
target_link_libraries(foreshard_fuzz_state PUBLIC foreshard_sim PRIVATE foreshard_flags)

# What the server reads needs none of its library either.
add_library(foreshard_fuzz_http STATIC cli/http/form.cpp)
target_link_libraries(foreshard_fuzz_http PUBLIC foreshard_sim PRIVATE foreshard_flags)

file(GLOB fuzzers CONFIGURE_DEPENDS tests/fuzz/*_fuzz.cpp)
foreach(source IN LISTS fuzzers)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE foreshard_cli foreshard_reports foreshard_interop
                                        foreshard_fuzz_state foreshard_fuzz_http foreshard_flags)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fuzzers")
endforeach()
