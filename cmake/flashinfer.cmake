# SPDX-License-Identifier: Apache-2.0
# FlashInfer's headers, from its wheel: downloaded with pip into the build folder when the plug-ins
# are configured, checked, and unpacked only as far as they are needed. -DMSGL_FLASHINFER_WHEEL=FILE
# (or the environment variable of that name) takes a wheel that is there already.
set(MSGL_FLASHINFER_VERSION 0.6.13)
set(MSGL_FLASHINFER_SHA256 239e6ddc3cbbaf0bee251861a8c7c69438b1171830d69ddfa133ddea4494850d)
set(MSGL_FLASHINFER_WHEEL "$ENV{MSGL_FLASHINFER_WHEEL}" CACHE FILEPATH
    "wheel of flashinfer-python ${MSGL_FLASHINFER_VERSION}; empty: download it")

set(msgl_flashinfer_root ${PROJECT_BINARY_DIR}/flashinfer)

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
    msgl_wheel(wheel flashinfer-python ${MSGL_FLASHINFER_VERSION} py3-none-any
               ${MSGL_FLASHINFER_SHA256} MSGL_FLASHINFER_WHEEL ${msgl_flashinfer_root} "14 MB"
               "Plug-ins fi and trtllm: off")
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
