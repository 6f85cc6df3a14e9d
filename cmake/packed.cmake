# Large tables that are read and seldom edited are tracked packed: FOLDER/NAME.tar.xz, whose files lie beside
# it once configured (a fifth to a fortieth of their bytes: versions of a recording share most rows). A pack
# that differs from what was unpacked last is unpacked again, whatever build folder asks;
# `cmake -P cmake/packed.cmake` does it without a build. cmake/packed.py makes packs.
function(foreshard_unpack)
  cmake_path(GET CMAKE_CURRENT_FUNCTION_LIST_DIR PARENT_PATH root)
  file(GLOB_RECURSE packs LIST_DIRECTORIES false "${root}/calibration/*.tar.xz" "${root}/reports/*.tar.xz"
       "${root}/tests/*.tar.xz")
  foreach(pack IN LISTS packs)
    cmake_path(GET pack PARENT_PATH folder)
    cmake_path(GET pack FILENAME name)
    set(mark "${folder}/.${name}.unpacked")
    file(SHA256 "${pack}" now)
    set(before "")
    if(EXISTS "${mark}")
      file(READ "${mark}" before)
    endif()
    if(NOT now STREQUAL before)
      message(STATUS "Unpacking ${pack}")
      file(ARCHIVE_EXTRACT INPUT "${pack}" DESTINATION "${folder}" TOUCH)
      file(WRITE "${mark}" "${now}")
    endif()
    if(NOT CMAKE_SCRIPT_MODE_FILE)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${pack}")
    endif()
  endforeach()
endfunction()
foreshard_unpack()
