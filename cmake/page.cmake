# The HTML report's parts: template, style and code of reports/page/, and d3 of the distribution's
# package node-d3 (FORESHARD_D3 of cmake/third_party.cmake), which is never copied into the repository.
# The page's Content-Security-Policy names scripts and style by the hashes that are made here.

# foreshard_sha256_base64(<variable> <file>): as a Content-Security-Policy has it.
function(foreshard_sha256_base64 variable file)
  set(letters "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  file(SHA256 "${file}" hex)
  string(APPEND hex "00")  # 33 bytes: 11 groups of three, the last letter is padding
  set(text "")
  foreach(begin RANGE 0 60 6)
    string(SUBSTRING "${hex}" ${begin} 6 group)
    foreach(shift 18 12 6 0)
      math(EXPR index "(0x${group} >> ${shift}) & 63")
      string(SUBSTRING "${letters}" ${index} 1 letter)
      string(APPEND text "${letter}")
    endforeach()
  endforeach()
  string(SUBSTRING "${text}" 0 43 text)
  set(${variable} "'sha256-${text}='" PARENT_SCOPE)
endfunction()

# foreshard_page(<target>): embeds the parts as page_files().
function(foreshard_page target)
  set(folder "${PROJECT_SOURCE_DIR}/reports/page")
  file(GLOB scripts CONFIGURE_DEPENDS "${folder}/*.js")
  set(hashes "")
  foreach(script IN LISTS scripts ITEMS "${FORESHARD_D3}")
    foreshard_sha256_base64(hash "${script}")
    list(APPEND hashes "${hash}")
  endforeach()
  list(JOIN hashes " " hashes)
  foreshard_sha256_base64(style "${folder}/page.css")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${folder}/page.css" ${scripts}
               "${FORESHARD_D3}")
  foreshard_embed(${target} page_files reports/page/*.html reports/page/*.css reports/page/*.js
                  "${FORESHARD_D3}")
  set_source_files_properties("${PROJECT_SOURCE_DIR}/reports/page/page_html.cpp" PROPERTIES
    COMPILE_DEFINITIONS
      "FORESHARD_PAGE_SCRIPTS=\"${hashes}\";FORESHARD_PAGE_STYLES=\"${style}\"")
endfunction()
