# foreshard_embed(<target> <symbol> <globs...>): puts the files that match, byte for byte, into the target
# and defines  std::span<const foreshard::EmbeddedFile> foreshard::<symbol>()  (sim/base/embedded.h),
# sorted by path; paths are relative to the repository root. The assembler's .incbin reads the files, so
# their size costs nothing; a changed file rebuilds one object.
function(foreshard_embed target symbol)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" ${ARGN})
  list(SORT files)

  set(assembly "")
  set(declarations "")
  set(entries "")
  set(number 0)
  foreach(file IN LISTS files)
    set(label foreshard_embedded_${symbol}_${number})
    string(APPEND assembly
      "FORESHARD_EMBED(\"${label}\", \"${PROJECT_SOURCE_DIR}/${file}\")\n")
    string(APPEND declarations
      "extern const char ${label}[];\nextern const std::uint64_t ${label}_size;\n")
    set(path "${file}")
    if(path MATCHES "^\\.\\./")  # a file of the system: its name alone
      cmake_path(GET path FILENAME path)
    endif()
    string(APPEND entries "      EmbeddedFile{\"${path}\", {${label}, ${label}_size}},\n")
    math(EXPR number "${number} + 1")
  endforeach()

  set(source "${PROJECT_BINARY_DIR}/embedded/${symbol}.cpp")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/embedded.cpp.in" "${source}" @ONLY)
  list(TRANSFORM files PREPEND "${PROJECT_SOURCE_DIR}/")
  set_source_files_properties("${source}" PROPERTIES OBJECT_DEPENDS "${files}"
                              SKIP_PRECOMPILE_HEADERS ON)
  target_sources(${target} PRIVATE "${source}")
endfunction()
