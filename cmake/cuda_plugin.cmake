# The engine's CUDA half, libforeshard_cuda.so (exec/cuda/): built where a CUDA 13 toolkit with NCCL's
# header is, without a GPU and without LibTorch's CUDA half, whose symbols stay undefined until the
# program loads both (exec/device/load_accelerator.cpp). Where it is not built, FORESHARD_NO_CUDA says why.
#
# nvcc is called directly: enable_language(CUDA) would look for a toolkit on every machine and fail
# without one.
set(FORESHARD_CUDA_ARCHITECTURES "80;90;100;120" CACHE STRING "compute capabilities of the plugin's kernels")
find_program(FORESHARD_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
             PATHS /usr/local/cuda/bin)
set(reason "")
if(FORESHARD_NVCC)
  file(REAL_PATH "${FORESHARD_NVCC}" nvcc_real)
  cmake_path(GET nvcc_real PARENT_PATH toolkit_bin)
  cmake_path(GET toolkit_bin PARENT_PATH toolkit)
  find_path(FORESHARD_CUDA_INCLUDE cuda_runtime_api.h
            HINTS "${toolkit}/include" "${toolkit}/targets/x86_64-linux/include" NO_DEFAULT_PATH)
  find_path(FORESHARD_NCCL_INCLUDE nccl.h HINTS "${toolkit}/include" PATHS /usr/include)
  execute_process(COMMAND "${FORESHARD_NVCC}" --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+)\\." ignored "${nvcc_says}")
  set(nvcc_major "${CMAKE_MATCH_1}")
endif()
if(FORESHARD_SANITIZE)
  set(reason "sanitizers and CUDA do not go together")
elseif(NOT FORESHARD_NVCC)
  set(reason "there is no CUDA toolkit (nvcc)")
elseif(NOT nvcc_major EQUAL 13)
  set(reason "LibTorch 2.11 is of CUDA 13, the toolkit of CUDA ${nvcc_major}")
elseif(NOT FORESHARD_CUDA_INCLUDE)
  set(reason "the CUDA toolkit has no cuda_runtime_api.h")
elseif(NOT FORESHARD_NCCL_INCLUDE)
  set(reason "NCCL's header nccl.h is missing")
elseif(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(reason "it is built with g++ only")
endif()
set(FORESHARD_NO_CUDA "${reason}" CACHE INTERNAL "")
if(reason)
  message(NOTICE "libforeshard_cuda.so is not built: ${reason}")
  return()
endif()

set(code_flags)
foreach(arch IN LISTS FORESHARD_CUDA_ARCHITECTURES)
  list(APPEND code_flags "-gencode=arch=compute_${arch},code=sm_${arch}")
endforeach()
list(GET FORESHARD_CUDA_ARCHITECTURES -1 newest)
list(APPEND code_flags "-gencode=arch=compute_${newest},code=compute_${newest}")  # for what comes later

file(GLOB kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/exec/cuda/*.cu")
set(objects)
foreach(source IN LISTS kernels)
  cmake_path(GET source STEM stem)
  set(object "${PROJECT_BINARY_DIR}/cuda/${stem}.o")
  add_custom_command(
    OUTPUT "${object}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/cuda"
    COMMAND "${FORESHARD_NVCC}" -std=c++20 -O3 -ccbin "${CMAKE_CXX_COMPILER}" --cudart=shared
            -Xcompiler=-fPIC,-Wall "-I${PROJECT_SOURCE_DIR}" ${code_flags}
            -MD -MF "${object}.d" -c "${source}" -o "${object}"
    DEPENDS "${source}" DEPFILE "${object}.d" VERBATIM COMMENT "Building CUDA object cuda/${stem}.o")
  list(APPEND objects "${object}")
endforeach()

file(GLOB plugin_sources CONFIGURE_DEPENDS exec/cuda/*.cpp)
add_library(foreshard_cuda MODULE ${plugin_sources} ${objects})
target_include_directories(foreshard_cuda PRIVATE "${PROJECT_SOURCE_DIR}")
target_include_directories(foreshard_cuda SYSTEM PRIVATE
  "$<TARGET_PROPERTY:Torch::c10,INTERFACE_INCLUDE_DIRECTORIES>"
  "${FORESHARD_CUDA_INCLUDE}" "${FORESHARD_NCCL_INCLUDE}")
target_link_libraries(foreshard_cuda PRIVATE foreshard_flags)
set_target_properties(foreshard_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${FORESHARD_BIN_DIR}"
                      CXX_VISIBILITY_PRESET default)
