# SPDX-License-Identifier: Apache-2.0
# FlashInfer's headers, from its wheel: downloaded with pip into the build folder when the plug-ins
# are configured, checked, and unpacked only as far as they are needed. -DMSGL_FLASHINFER_WHEEL=FILE
# (or the environment variable of that name) takes a wheel that is there already.
set(MSGL_FLASHINFER_VERSION 0.6.13)
set(MSGL_FLASHINFER_SHA256 239e6ddc3cbbaf0bee251861a8c7c69438b1171830d69ddfa133ddea4494850d)
set(MSGL_FLASHINFER_WHEEL "$ENV{MSGL_FLASHINFER_WHEEL}" CACHE FILEPATH
    "wheel of flashinfer-python ${MSGL_FLASHINFER_VERSION}; empty: download it")

set(msgl_flashinfer_root ${PROJECT_BINARY_DIR}/flashinfer)

# msgl_flashinfer_download(VARIABLE): path of the wheel, or empty after a message.
function(msgl_flashinfer_download result)
  set(name flashinfer_python-${MSGL_FLASHINFER_VERSION}-py3-none-any.whl)
  set(${result} "" PARENT_SCOPE)
  if(MSGL_FLASHINFER_WHEEL)
    set(wheel ${MSGL_FLASHINFER_WHEEL})
    if(NOT EXISTS ${wheel})
      message(FATAL_ERROR "MSGL_FLASHINFER_WHEEL: there is no file ${wheel}")
    endif()
  else()
    set(wheel ${msgl_flashinfer_root}/${name})
    if(NOT EXISTS ${wheel})
      message(STATUS "FlashInfer ${MSGL_FLASHINFER_VERSION}: downloading the wheel (14 MB)")
      file(MAKE_DIRECTORY ${msgl_flashinfer_root})
      execute_process(
        COMMAND python3 -m pip download --quiet --no-deps --only-binary=:all:
                --dest ${msgl_flashinfer_root} flashinfer-python==${MSGL_FLASHINFER_VERSION}
        RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE text TIMEOUT 300)
      if(NOT code EQUAL 0 OR NOT EXISTS ${wheel})
        string(STRIP "${text}" text)
        string(REGEX REPLACE ".*\n" "" text "${text}")
        if(text STREQUAL "")
          set(text "${code}")
        endif()
        message(STATUS "FlashInfer: pip could not download it (${text}). Plug-ins fi and trtllm: "
                       "off. -DMSGL_FLASHINFER_WHEEL=FILE takes a copy of ${name}")
        return()
      endif()
    endif()
  endif()
  file(SHA256 ${wheel} sum)
  if(NOT sum STREQUAL MSGL_FLASHINFER_SHA256)
    message(FATAL_ERROR "${wheel}: SHA-256 is ${sum}, expected ${MSGL_FLASHINFER_SHA256} "
                        "(flashinfer-python ${MSGL_FLASHINFER_VERSION}); delete or replace the file")
  endif()
  set(${result} ${wheel} PARENT_SCOPE)
endfunction()

# msgl_flashinfer_fetch(VARIABLE): TRUE when the headers are in the build folder.
function(msgl_flashinfer_fetch result)
  set(${result} FALSE PARENT_SCOPE)
  set(stamp ${msgl_flashinfer_root}/${MSGL_FLASHINFER_SHA256})
  if(NOT EXISTS ${stamp})
    get_property(tried GLOBAL PROPERTY MSGL_FLASHINFER_TRIED)
    if(tried)
      return()
    endif()
    set_property(GLOBAL PROPERTY MSGL_FLASHINFER_TRIED TRUE)
    msgl_flashinfer_download(wheel)
    if(NOT wheel)
      return()
    endif()
    # All of these are Apache-2.0 or BSD-3-Clause; csrc/fmha_v2 is under another licence and stays
    # in the wheel.
    set(data flashinfer/data)
    file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${msgl_flashinfer_root} PATTERNS
         "flashinfer_python-*/licenses/*"
         "${data}/include/flashinfer/*" "${data}/csrc/xqa/*"
         "${data}/cccl/libcudacxx/include/*" "${data}/cccl/cub/cub/*"
         "${data}/cccl/thrust/thrust/*" "${data}/cutlass/include/*"
         "${data}/cutlass/tools/util/include/*")
    file(TOUCH ${stamp})
  endif()
  set(${result} TRUE PARENT_SCOPE)
endfunction()

# msgl_flashinfer_headers(TARGET): compiles the target's sources against the wheel. Its copy of CUDA's
# C++ headers comes first: a toolkit's own may be too old for it.
function(msgl_flashinfer_headers target)
  set(data ${msgl_flashinfer_root}/flashinfer/data)
  target_include_directories(${target} SYSTEM BEFORE PRIVATE
    ${data}/cccl/libcudacxx/include ${data}/cccl/cub ${data}/cccl/thrust ${data}/include
    ${data}/cutlass/include ${data}/cutlass/tools/util/include ${data}/csrc/xqa)
  target_compile_definitions(${target} PRIVATE FLASHINFER_ENABLE_F16 FLASHINFER_ENABLE_BF16 NDEBUG)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Wno-deprecated-gpu-targets;--compress-mode=size>")
endfunction()
