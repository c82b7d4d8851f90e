# SPDX-License-Identifier: Apache-2.0
# cmake -DFROM=src/apps/page/parts -DTO=page_text.c -P page.cmake: joins the page that the server has at `/`
# into one text, and writes it as C. Its Content-Security-Policy names the one script and the one style
# by their hashes, so that a browser runs nothing else, whatever gets into the page.
file(READ "${FROM}/page.html" page)
file(READ "${FROM}/page.css" style)
set(script "")
foreach(part markdown store server view panel page)
  file(READ "${FROM}/${part}.js" text)
  string(APPEND script "${text}")
endforeach()

# base64(OUT HEX): of whole bytes, as a policy has hashes. 32 bytes are 10 groups of 3 and one of 2.
set(digits ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
function(base64 out hex)
  set(text "")
  string(APPEND hex "00")
  string(LENGTH "${hex}" len)
  foreach(at RANGE 0 ${len} 6)
    string(SUBSTRING "${hex}" ${at} 6 group)
    if(group STREQUAL "")
      break()
    endif()
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${group} >> ${shift}) & 63")
      string(SUBSTRING "${digits}" ${digit} 1 one)
      string(APPEND text "${one}")
    endforeach()
  endforeach()
  string(REGEX REPLACE "A$" "=" text "${text}")
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

string(SHA256 hash "${style}")
base64(style_hash "${hash}")
string(SHA256 hash "${script}")
base64(script_hash "${hash}")
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "${script}" page "${page}")
string(SHA256 hash "${page}")
string(SUBSTRING "${hash}" 0 32 tag)

set(policy "default-src 'none'; script-src 'sha256-${script_hash}'; style-src 'sha256-${style_hash}'")
string(APPEND policy "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'")
string(APPEND policy "; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")

file(WRITE "${TO}.html" "${page}")
file(READ "${TO}.html" bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REPEAT "....." 20 line) # 20 bytes
string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")
file(WRITE "${TO}" "// Made by cmake/page.cmake.
#include \"apps/page/page.h\"

const unsigned char msgl__page_text[] = {
${bytes}};
const size_t msgl__page_len = sizeof msgl__page_text;
const char msgl__page_etag[] = \"\\\"${tag}\\\"\";
const char msgl__page_headers[] =
    \"Content-Security-Policy: ${policy}\\r\\n\"
    \"X-Content-Type-Options: nosniff\\r\\n\"
    \"X-Frame-Options: DENY\\r\\n\"
    \"Referrer-Policy: no-referrer\\r\\n\"
    \"Cross-Origin-Opener-Policy: same-origin\\r\\n\"
    \"Cache-Control: no-cache\\r\\n\"
    \"ETag: \\\"${tag}\\\"\\r\\n\";
")
