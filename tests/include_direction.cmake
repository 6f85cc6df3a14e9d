# cmake -D ROOT=<repository> -P tests/include_direction.cmake
# Fails, naming file and line, when an #include goes against the arrows between the folders.
cmake_minimum_required(VERSION 3.25)

# folder -> the folders it may include, besides itself
set(arrows_sim "")
set(arrows_models sim)
set(arrows_calibration sim)
set(arrows_reports sim calibration)
set(arrows_exec sim models reports)
set(arrows_interop sim models calibration reports)
set(arrows_planner sim models calibration reports interop)
set(arrows_cli sim models calibration reports exec interop planner)
set(arrows_tools sim calibration)
set(folders sim models calibration reports exec interop planner cli tools)

# inside these: a lower floor never includes a higher one
set(floors_sim base spec graph cost memory simulate search)
set(floors_exec memory comm launch device cuda compute checks data state engine run null)

# Only these see Torch, CUDA, NCCL or a network's library, and each other: the planner is built without.
set(engine "^(exec|cli/exec|calibration/measure)/|^cli/foreshard_exec\\.cpp$")
set(foreign "^(torch|ATen|c10|caffe2|gloo|benchmark|cuda|cublas|nvtx3|nccl|mpi)([/_.]|$)")
# Boost.Graph in no header anywhere: it costs seconds per file
set(slow_in_headers "^boost/graph/")

set(violations "")
set(file_count 0)

function(violate file line why)
  list(APPEND violations "${file}:${line}: ${why}")
  set(violations "${violations}" PARENT_SCOPE)
endfunction()

foreach(folder IN LISTS folders)
  file(GLOB_RECURSE files RELATIVE "${ROOT}"
       "${ROOT}/${folder}/*.h" "${ROOT}/${folder}/*.cpp" "${ROOT}/${folder}/*.cu"
       "${ROOT}/${folder}/*.inc")
  foreach(file IN LISTS files)
    math(EXPR file_count "${file_count} + 1")
    set(allowed ${folder} ${arrows_${folder}})
    if(file MATCHES "^calibration/measure/")
      list(APPEND allowed exec)
    endif()

    # The lines, numbered: brackets, semicolons and backslashes would confuse CMake's lists.
    file(READ "${ROOT}/${file}" text)
    string(REGEX REPLACE "[][;\\]" " " text "${text}")
    string(REPLACE "\n" ";" lines "${text}")
    set(number 0)
    foreach(line IN LISTS lines)
      math(EXPR number "${number} + 1")
      if(NOT line MATCHES "^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"]")
        continue()
      endif()
      set(quote "${CMAKE_MATCH_1}")
      set(target "${CMAKE_MATCH_2}")
      string(REGEX MATCH "^[^/]+" target_folder "${target}")

      if(NOT file MATCHES "${engine}" AND target MATCHES "${foreign}|${engine}")
        violate("${file}" ${number} "only the engine includes ${target}")
      elseif(file MATCHES "\\.h$" AND target MATCHES "${slow_in_headers}")
        violate("${file}" ${number} "no header includes ${target}, a .cpp may")
      endif()
      if(NOT quote STREQUAL "\"")
        continue()
      endif()

      if(NOT target_folder IN_LIST folders)
        violate("${file}" ${number} "\"${target}\" is not written from the repository's root")
      elseif(NOT target_folder IN_LIST allowed)
        violate("${file}" ${number} "${folder}/ must not include ${target_folder}/ (${target})")
      elseif(DEFINED floors_${folder} AND target_folder STREQUAL folder AND file MATCHES "^${folder}/([^/]+)/")
        set(own_name "${CMAKE_MATCH_1}")
        list(FIND floors_${folder} "${own_name}" own)
        string(REGEX MATCH "^${folder}/([^/]+)/" ignored "${target}")
        list(FIND floors_${folder} "${CMAKE_MATCH_1}" other)
        if(own LESS 0)
          violate("${file}" ${number} "${folder}/${own_name}/ is not among the floors of ${folder}/")
        elseif(other GREATER own)
          violate("${file}" ${number} "${folder}/${own_name}/ lies below ${folder}/${CMAKE_MATCH_1}/ (${target})")
        endif()
      endif()
    endforeach()
  endforeach()
endforeach()

if(violations)
  list(JOIN violations "\n  " text)
  message(FATAL_ERROR " includes against the arrows (CONTRIBUTING.md):\n  ${text}")
endif()
message(STATUS "include_direction: ${file_count} files, every include follows the arrows")
