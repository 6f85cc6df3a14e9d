# Every library this project uses from elsewhere. Package names are those of packages.txt.
# Sets FORESHARD_LIBRARIES (what sim/ and all above it may use) and FORESHARD_MISSING, one sentence
# naming everything that was not found with the command that installs it, empty when all is there.
set(missing_names)
set(missing_packages)

# foreshard_find(<name for people> <Debian package> <find_package arguments...>)
macro(foreshard_find name package library)
  find_package(${library} ${ARGN} QUIET)
  if(NOT ${library}_FOUND)
    list(APPEND missing_names "${name}")
    list(APPEND missing_packages "${package}")
  endif()
endmacro()

find_package(Threads REQUIRED)
foreshard_find("nlohmann-json" nlohmann-json3-dev nlohmann_json 3.11)
foreshard_find("yaml-cpp" libyaml-cpp-dev yaml-cpp)
foreshard_find("CLI11" libcli11-dev CLI11)
foreshard_find("fmt" libfmt-dev fmt 9)
foreshard_find("Boost.Graph" libboost-graph-dev Boost 1.74 CONFIG)
foreshard_find("Eigen" libeigen3-dev Eigen3 3.4)
foreshard_find("oneTBB" libtbb-dev TBB)
foreshard_find("SQLite" libsqlite3-dev SQLite3)
foreshard_find("zlib" zlib1g-dev ZLIB)
foreshard_find("pugixml" libpugixml-dev pugixml 1.12)
foreshard_find("toml++" libtomlplusplus-dev tomlplusplus 3.3)
# cpp-httplib comes without a package file for CMake. The distributions compile it; the header must see the
# definitions that they compiled it with, and those stand in the file for pkg-config. Only the verb serve
# needs it, and is not built without.
find_path(FORESHARD_HTTPLIB_INCLUDE httplib.h)
find_library(FORESHARD_HTTPLIB cpp-httplib)
set(FORESHARD_HTTPLIB_DEFINITIONS "")
if(FORESHARD_HTTPLIB_INCLUDE AND FORESHARD_HTTPLIB)
  cmake_path(GET FORESHARD_HTTPLIB PARENT_PATH folder)
  file(STRINGS "${folder}/pkgconfig/cpp-httplib.pc" flags REGEX "^Cflags:")
  string(REGEX MATCHALL "CPPHTTPLIB_[A-Z_]+" FORESHARD_HTTPLIB_DEFINITIONS "${flags}")
endif()

# A file, not a library: cmake/page.cmake puts it into the report.
find_file(FORESHARD_D3 d3.min.js PATHS /usr/share/nodejs/d3/dist NO_DEFAULT_PATH)
if(NOT FORESHARD_D3)
  list(APPEND missing_names "d3")
  list(APPEND missing_packages "node-d3")
endif()
if(FORESHARD_TESTS)
  foreshard_find("GoogleTest" libgtest-dev GTest)
  foreshard_find("Google Benchmark" libbenchmark-dev benchmark)
  foreshard_find("RapidCheck" librapidcheck-dev rapidcheck)
endif()

if(NOT TARGET yaml-cpp::yaml-cpp AND TARGET yaml-cpp)  # the target's name before yaml-cpp 0.8
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
set(FORESHARD_LIBRARIES nlohmann_json::nlohmann_json yaml-cpp::yaml-cpp fmt::fmt Boost::headers
    Eigen3::Eigen TBB::tbb Threads::Threads)

# The engine's libraries: without them the planner alone is built, and FORESHARD_NO_ENGINE (read by `./x`
# from the cache) is the reason.
list(APPEND CMAKE_MODULE_PATH "${PROJECT_SOURCE_DIR}/cmake")
find_package(Torch 2.11 QUIET)
find_package(benchmark QUIET)
set(reason "")
if(CMAKE_DISABLE_FIND_PACKAGE_Torch)
  set(reason "this build does not look for LibTorch")
elseif(NOT Torch_CPU_LIBRARY OR NOT Torch_C10_LIBRARY OR NOT Torch_INCLUDE_DIR)
  set(reason "there is no LibTorch in ${FORESHARD_TORCH}")
elseif(NOT Torch_GLOO_INCLUDE_DIR)
  set(reason "the headers of Gloo are missing; install them with: sudo apt-get install libgloo-dev")
elseif(NOT Torch_FOUND)
  set(reason "LibTorch 2.11 or newer is needed, ${FORESHARD_TORCH} holds ${Torch_VERSION}")
elseif(NOT benchmark_FOUND)
  set(reason "Google Benchmark is missing; install it with: sudo apt-get install libbenchmark-dev")
endif()
set(FORESHARD_NO_ENGINE "${reason}" CACHE INTERNAL "")

set(FORESHARD_MISSING "")
if(missing_names)
  list(LENGTH missing_names count)
  list(JOIN missing_names ", " names)
  list(JOIN missing_packages " " packages)
  if(count EQUAL 1)
    set(FORESHARD_MISSING "${names} is missing; install it with: sudo apt-get install ${packages}")
  else()
    set(FORESHARD_MISSING "${names} are missing; install them with: sudo apt-get install ${packages}")
  endif()
endif()
