# C++20, the flags of every target of ours (foreshard_flags), and ccache where it is installed.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 32)  # with CMAKE_UNITY_BUILD, which `./x` gives to a new folder

# The default build is Release. No -DNDEBUG: checks stay on in what users run.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2" CACHE STRING "" FORCE)

# Warnings stop the build with the compiler this is developed with; a newer one that invents a warning
# must not stop a user's build. Sanitizers make GCC warn about code that is right.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13
   AND NOT FORESHARD_SANITIZE)
  set(werror_default ON)
else()
  set(werror_default OFF)
endif()
option(FORESHARD_WERROR "warnings stop the build" ${werror_default})

add_library(foreshard_flags INTERFACE)
target_compile_options(foreshard_flags INTERFACE
  -Wall -Wextra -Wconversion $<$<BOOL:${FORESHARD_WERROR}>:-Werror>
  -Wno-missing-field-initializers  # what a designated initializer leaves out has its default
  # GCC 12 sees overlaps and overflows in std::string's operator+ that are not there (GCC bug 105651).
  "$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>"
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>  # lets ccache see the precompiled header
  # Clang counts sign changes to -Wconversion, GCC does not; GCC's reading is ours.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>
  # Files that are compiled together (CMAKE_UNITY_BUILD) look like headers; collecting garbage would
  # take a tenth of their time to keep 0.3 GB.
  "$<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-subobject-linkage;SHELL:--param ggc-min-heapsize=2000000>"
  -ffp-contract=off  # no fused multiply-add: the same bytes on every machine
  "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")

if(FORESHARD_SANITIZE)  # for every object, third-party headers included
  add_compile_options(-fsanitize=${FORESHARD_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${FORESHARD_SANITIZE})
endif()

find_program(FORESHARD_CCACHE ccache)
if(FORESHARD_CCACHE)  # the sloppiness is what ccache asks for to cache with precompiled headers
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros "${FORESHARD_CCACHE}")
endif()

# foreshard_program(<target>): a program or module that users run: without symbols that nobody links
# against, and without sections that nothing names.
function(foreshard_program target)
  target_link_options(${target} PRIVATE $<$<CONFIG:Release>:LINKER:--strip-all,--gc-sections>)
endfunction()
