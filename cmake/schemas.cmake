# foreshard_schemas(<target>): embeds as schema_files() the JSON Schemas that cmake/schemas.py writes from the
# notation of cli/schemas/.
function(foreshard_schemas target)
  file(GLOB notations CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/cli/schemas/*.txt")
  set(folder "${PROJECT_BINARY_DIR}/schemas")
  set(script "${PROJECT_SOURCE_DIR}/cmake/schemas.py")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${script}" ${notations})
  find_program(FORESHARD_PYTHON3 python3)
  execute_process(COMMAND "${FORESHARD_PYTHON3}" "${script}" "${folder}" ${notations}
                  COMMAND_ERROR_IS_FATAL ANY)
  foreshard_embed(${target} schema_files "${folder}/*.schema.json")
endfunction()
