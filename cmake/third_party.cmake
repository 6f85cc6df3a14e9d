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

# The engine's libraries: without them the planner alone is built.
list(APPEND CMAKE_MODULE_PATH "${PROJECT_SOURCE_DIR}/cmake")
find_package(Torch 2.11 QUIET)
find_package(benchmark QUIET)
set(FORESHARD_NO_ENGINE "")
if(NOT Torch_FOUND)
  set(FORESHARD_NO_ENGINE "LibTorch 2.11 is not at hand")
elseif(NOT benchmark_FOUND)
  set(FORESHARD_NO_ENGINE "Google Benchmark is missing; install it with: sudo apt-get install libbenchmark-dev")
endif()

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
