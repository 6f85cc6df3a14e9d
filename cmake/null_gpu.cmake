# The null GPU (exec/null/) and the program that runs commands on it: build/bin/foreshard-null, and
# beside it null/: the library, the names by which programs look for CUDA's driver (lib/), those of CUDA's
# other libraries for builds of PyTorch whose own are not installed (absent/), and Python's part.
# It needs neither CUDA nor its headers, LibTorch nor Python.
file(GLOB null_sources CONFIGURE_DEPENDS exec/null/*.cpp)
add_library(foreshard_null_gpu SHARED ${null_sources})
target_include_directories(foreshard_null_gpu PRIVATE "${PROJECT_SOURCE_DIR}")
target_link_libraries(foreshard_null_gpu PRIVATE foreshard_flags ${CMAKE_DL_LIBS})
set(null_folder "${FORESHARD_BIN_DIR}/null")
set_target_properties(foreshard_null_gpu PROPERTIES OUTPUT_NAME foreshard-null
  LIBRARY_OUTPUT_DIRECTORY "${null_folder}" CXX_VISIBILITY_PRESET hidden
  UNITY_BUILD OFF)  # every file has a State of its own
file(GLOB absent_sources CONFIGURE_DEPENDS exec/null/absent/*.cpp)
add_library(foreshard_null_absent SHARED ${absent_sources})
target_include_directories(foreshard_null_absent PRIVATE "${PROJECT_SOURCE_DIR}")
# Who asks one of these names for a function is given the null GPU's.
target_link_libraries(foreshard_null_absent PRIVATE foreshard_flags -Wl,--no-as-needed foreshard_null_gpu)
set_target_properties(foreshard_null_absent PROPERTIES OUTPUT_NAME foreshard-absent
  LIBRARY_OUTPUT_DIRECTORY "${null_folder}" CXX_VISIBILITY_PRESET hidden)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS exec/null/absent/libraries.txt)
file(STRINGS exec/null/absent/libraries.txt absent_libraries)
file(MAKE_DIRECTORY "${null_folder}/absent")
foreach(library ${absent_libraries})
  file(CREATE_LINK ../libforeshard-absent.so "${null_folder}/absent/${library}" SYMBOLIC)
endforeach()

file(GLOB null_python CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/exec/null/python/*.py")
set_target_properties(foreshard_null_gpu PROPERTIES
  LINK_DEPENDS
    "${null_python}")
add_custom_command(TARGET foreshard_null_gpu POST_BUILD
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${null_folder}/lib" "${null_folder}/python"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink ../libforeshard-null.so "${null_folder}/lib/libcuda.so.1"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink ../libforeshard-null.so "${null_folder}/lib/libnvidia-ml.so.1"
  COMMAND "${CMAKE_COMMAND}" -E copy ${null_python} "${null_folder}/python" VERBATIM)

add_executable(foreshard-null cli/foreshard_null.cpp)
target_link_libraries(foreshard-null PRIVATE foreshard_cli foreshard_flags)
set_target_properties(foreshard-null PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${FORESHARD_BIN_DIR}")
add_dependencies(foreshard-null foreshard_null_gpu foreshard_null_absent)
foreshard_program(foreshard-null)

if(FORESHARD_TESTS)
  foreach(program step fault)
    add_executable(null_${program}_program tests/null/${program}_program.cpp)
    target_include_directories(null_${program}_program PRIVATE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(null_${program}_program PRIVATE foreshard_null_gpu foreshard_flags)
    set_target_properties(null_${program}_program PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/programs")
  endforeach()
endif()
