# cmake --install build/release --component wheel --prefix DIR: the Python package as the wheel holds it,
# the program and the libraries that a machine with nothing but the C library lacks
# (cli/python/build_wheel.py makes the wheel of it).
if(NOT TARGET foreshard)
  return()
endif()

# DT_RPATH, not DT_RUNPATH: it holds for the libraries of the libraries, too.
set(origin INSTALL_RPATH "$ORIGIN/../lib")
target_link_options(foreshard PRIVATE LINKER:--disable-new-dtags)
set_target_properties(foreshard PROPERTIES ${origin})
install(TARGETS foreshard RUNTIME_DEPENDENCY_SET foreshard_runtime
        RUNTIME DESTINATION foreshard/bin COMPONENT wheel)
install(RUNTIME_DEPENDENCY_SET foreshard_runtime
        PRE_EXCLUDE_REGEXES "^(ld-linux|lib(c|m|dl|rt|pthread|resolv|util)[.]so)"
        LIBRARY DESTINATION foreshard/lib COMPONENT wheel)
install(DIRECTORY cli/python/foreshard/ DESTINATION foreshard COMPONENT wheel
        FILES_MATCHING PATTERN "*.py" PATTERN "*.pyi" PATTERN "py.typed"
        PATTERN "__pycache__" EXCLUDE)
