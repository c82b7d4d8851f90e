# SPDX-License-Identifier: Apache-2.0
# NCCL's header: the toolkit's or the system's, else that of the pinned wheel. The library is opened
# at run time, whatever its version. Sets MSGL_NCCL_INCLUDE.
set(MSGL_NCCL_VERSION 2.28.9)
set(MSGL_NCCL_SHA256 e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42)
set(MSGL_NCCL_WHEEL "$ENV{MSGL_NCCL_WHEEL}" CACHE FILEPATH
    "wheel of nvidia-nccl-cu13 ${MSGL_NCCL_VERSION}; empty: download it if nccl.h is missing")

find_path(MSGL_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
          DOC "folder of nccl.h")
if(NOT MSGL_NCCL_INCLUDE)
  set(folder ${PROJECT_BINARY_DIR}/nccl)
  msgl_wheel(wheel nvidia-nccl-cu13 ${MSGL_NCCL_VERSION} py3-none-manylinux_2_18_x86_64
             ${MSGL_NCCL_SHA256} MSGL_NCCL_WHEEL ${folder} "196 MB"
             "Building the CUDA plug-ins needs its header")
  if(NOT wheel)
    message(FATAL_ERROR "nccl.h is missing: -DMSGL_NCCL_INCLUDE=FOLDER says where it is")
  endif()
  file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${folder} PATTERNS "nvidia/nccl/include/nccl.h")
  set(MSGL_NCCL_INCLUDE ${folder}/nvidia/nccl/include CACHE PATH "folder of nccl.h" FORCE)
endif()
