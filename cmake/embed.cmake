# foreshard_embed(<target> <symbol> <globs...>): puts the files that match, packed by gzip, into the target
# and defines  std::span<const foreshard::EmbeddedFile> foreshard::<symbol>()  (sim/base/embedded.h),
# sorted by path; paths are relative to the repository root. The assembler's .incbin reads the files, so
# their size costs nothing; a changed file rebuilds one object.
function(foreshard_embed target symbol)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" ${ARGN})
  list(SORT files)

  set(assembly "")
  set(declarations "")
  set(entries "")
  set(all_packed "")
  set(number 0)
  foreach(file IN LISTS files)
    set(label foreshard_embedded_${symbol}_${number})
    set(packed "${PROJECT_BINARY_DIR}/embedded/${symbol}_${number}.gz")
    add_custom_command(OUTPUT "${packed}" DEPENDS "${PROJECT_SOURCE_DIR}/${file}" VERBATIM
      COMMAND gzip -9 -n -c "${PROJECT_SOURCE_DIR}/${file}" > "${packed}" COMMENT "Packing ${file}")
    list(APPEND all_packed "${packed}")
    string(APPEND assembly "FORESHARD_EMBED(\"${label}\", \"${packed}\")\n")
    string(APPEND declarations
      "extern const char ${label}[];\nextern const std::uint64_t ${label}_size;\n")
    set(path "${file}")
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR "${PROJECT_SOURCE_DIR}/${file}" is_made)
    if(is_made OR path MATCHES "^\\.\\./")  # made by the build, or the system's: its name alone
      cmake_path(GET path FILENAME path)
    endif()
    string(APPEND entries "      EmbeddedFile{\"${path}\", EmbeddedText({${label}, ${label}_size})},\n")
    math(EXPR number "${number} + 1")
  endforeach()

  set(source "${PROJECT_BINARY_DIR}/embedded/${symbol}.cpp")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/embedded.cpp.in" "${source}" @ONLY)
  set_source_files_properties("${source}" PROPERTIES OBJECT_DEPENDS "${all_packed}"
                              SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PRIVATE "${source}")
endfunction()
