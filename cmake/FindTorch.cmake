# LibTorch's CPU half from the unpacked PyPI wheel (cmake/torch_wheel.py), without its own CMake files:
# those ask for a CUDA toolkit. Sets Torch_FOUND and the targets Torch::cpu and Torch::c10.
#
# FORESHARD_TORCH (the variable of CMake; at the first configuration also that of the environment): the
# folder that holds torch/lib and torch/include; a Python environment's site-packages serves too.
set(torch_folder "${PROJECT_SOURCE_DIR}/.whl/torch-2.11.0")
if(DEFINED ENV{FORESHARD_TORCH})
  file(REAL_PATH "$ENV{FORESHARD_TORCH}" torch_folder BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
endif()
set(FORESHARD_TORCH "${torch_folder}" CACHE PATH "folder that holds torch/lib and torch/include")

set(Torch_ROOT_DIR "${FORESHARD_TORCH}/torch")
# What was found in another folder, or is gone, is forgotten.
if(NOT FORESHARD_TORCH STREQUAL Torch_FOUND_FOR OR NOT EXISTS "${Torch_ROOT_DIR}/lib/libtorch_cpu.so")
  unset(Torch_INCLUDE_DIR CACHE)
  unset(Torch_CPU_LIBRARY CACHE)
  unset(Torch_C10_LIBRARY CACHE)
endif()
set(Torch_FOUND_FOR "${FORESHARD_TORCH}" CACHE INTERNAL "")
find_path(Torch_INCLUDE_DIR ATen/core/Tensor.h PATHS "${Torch_ROOT_DIR}/include" NO_DEFAULT_PATH)
find_library(Torch_CPU_LIBRARY torch_cpu PATHS "${Torch_ROOT_DIR}/lib" NO_DEFAULT_PATH)
find_library(Torch_C10_LIBRARY c10 PATHS "${Torch_ROOT_DIR}/lib" NO_DEFAULT_PATH)
# c10d's header of ProcessGroupGloo includes Gloo's, which the wheel lacks. Only declarations are used:
# Gloo itself is inside libtorch_cpu, and libgloo must not be linked beside it.
find_path(Torch_GLOO_INCLUDE_DIR gloo/context.h)

if(Torch_INCLUDE_DIR)
  file(STRINGS "${Torch_INCLUDE_DIR}/torch/headeronly/version.h" version_lines
       REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX MATCHALL "[0-9]+" Torch_VERSION "${version_lines}")
  list(JOIN Torch_VERSION "." Torch_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Torch
  REQUIRED_VARS Torch_CPU_LIBRARY Torch_C10_LIBRARY Torch_INCLUDE_DIR Torch_GLOO_INCLUDE_DIR
  VERSION_VAR Torch_VERSION)

# A whole wheel brings its own fmt, which would hide the system's: then its headers are reached through
# a folder of links to all the others.
set(torch_headers "${Torch_INCLUDE_DIR}")
if(Torch_FOUND AND EXISTS "${Torch_INCLUDE_DIR}/fmt")
  set(torch_headers "${PROJECT_BINARY_DIR}/torch_headers")
  file(REMOVE_RECURSE "${torch_headers}")
  file(MAKE_DIRECTORY "${torch_headers}")
  file(GLOB entries RELATIVE "${Torch_INCLUDE_DIR}" "${Torch_INCLUDE_DIR}/*")
  list(REMOVE_ITEM entries fmt)
  foreach(entry IN LISTS entries)
    file(CREATE_LINK "${Torch_INCLUDE_DIR}/${entry}" "${torch_headers}/${entry}" SYMBOLIC)
  endforeach()
endif()

if(Torch_FOUND AND NOT TARGET Torch::cpu)
  add_library(Torch::c10 SHARED IMPORTED)
  set_target_properties(Torch::c10 PROPERTIES
    IMPORTED_LOCATION "${Torch_C10_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${torch_headers};${torch_headers}/torch/csrc/api/include"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES
      "${torch_headers};${torch_headers}/torch/csrc/api/include")
  add_library(Torch::cpu SHARED IMPORTED)
  set_target_properties(Torch::cpu PROPERTIES
    IMPORTED_LOCATION "${Torch_CPU_LIBRARY}"
    IMPORTED_LINK_INTERFACE_LIBRARIES Torch::c10
    INTERFACE_LINK_LIBRARIES Torch::c10
    # libtorch_cpu's own needs (libcupti, libcudart) lie beside it.
    INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${Torch_ROOT_DIR}/lib;LINKER:--disable-new-dtags")
endif()
