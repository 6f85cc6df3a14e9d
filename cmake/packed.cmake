# Large tables that are read and seldom edited are tracked packed: FOLDER/NAME.tar.xz, whose files lie beside
# it once configured (a fifth to a fortieth of their bytes: versions of a recording share most rows). A pack
# that differs from what was unpacked last, or of which a file is gone, is unpacked again, whatever build folder asks;
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
    set(is_there FALSE)
    if(EXISTS "${mark}")
      file(STRINGS "${mark}" before)
      list(POP_FRONT before hash)
      if(hash STREQUAL now AND before)
        set(is_there TRUE)
      endif()
      foreach(file IN LISTS before)  # git deletes them where it goes to a commit that tracked them, and back
        if(is_there AND NOT EXISTS "${folder}/${file}")
          set(is_there FALSE)
        endif()
      endforeach()
    endif()
    if(NOT is_there)
      message(STATUS "Unpacking ${pack}")
      file(ARCHIVE_EXTRACT INPUT "${pack}" DESTINATION "${folder}" TOUCH)
      execute_process(COMMAND "${CMAKE_COMMAND}" -E tar tf "${pack}" OUTPUT_VARIABLE files
                      COMMAND_ERROR_IS_FATAL ANY)
      file(WRITE "${mark}" "${now}\n${files}")
    endif()
    if(NOT CMAKE_SCRIPT_MODE_FILE)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${pack}")
    endif()
  endforeach()
endfunction()
foreshard_unpack()
