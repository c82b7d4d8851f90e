# SPDX-License-Identifier: Apache-2.0
# Everything of CUDA is in plug-ins, compiled by nvcc 12.8 or newer. Nothing else of the project is compiled
# or linked with it. AUTO compiles for this machine's GPUs, or for those that MSGL_CUDA_ARCHS names; without
# a GPU, a name or an nvcc there are no plug-ins. ON insists on them, for all architectures unless some are named.
include(cmake/gpus.cmake)
set(MSGL_CUDA AUTO CACHE STRING "build the CUDA plug-ins: AUTO (if there are a GPU and a compiler), ON, OFF")
set(MSGL_CUDA_ALL_ARCHS 80 89 90a 100 120)
set(MSGL_CUDA_ARCHS "" CACHE STRING
    "compute capabilities to build kernels for; empty: with AUTO this machine's, with ON ${MSGL_CUDA_ALL_ARCHS}")

set(msgl_cuda_wanted ${MSGL_CUDA})
set(MSGL_CUDA OFF) # from here on: whether they are built
if(msgl_cuda_wanted AND SAN STREQUAL "")
  string(REPLACE " " ";" MSGL_CUDA_ARCHS "${MSGL_CUDA_ARCHS}")
  if(MSGL_CUDA_ARCHS STREQUAL "" AND msgl_cuda_wanted STREQUAL "AUTO")
    msgl_gpu_archs(MSGL_CUDA_ARCHS ${MSGL_CUDA_ALL_ARCHS})
  elseif(MSGL_CUDA_ARCHS STREQUAL "")
    set(MSGL_CUDA_ARCHS ${MSGL_CUDA_ALL_ARCHS})
  endif()
  foreach(arch ${MSGL_CUDA_ARCHS})
    if(NOT arch IN_LIST MSGL_CUDA_ALL_ARCHS)
      message(FATAL_ERROR "MSGL_CUDA_ARCHS: ${arch} is none of ${MSGL_CUDA_ALL_ARCHS}")
    endif()
  endforeach()
  if(MSGL_CUDA_ARCHS STREQUAL "")
    message(STATUS "CUDA plug-ins: off, no GPU found (`make cuda` builds them for other machines)")
  else()
    include(CheckLanguage)
    set(CMAKE_CUDA_ARCHITECTURES OFF) # sources say themselves what they are compiled for
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
      message(STATUS "CUDA plug-ins: off, no nvcc found")
    else()
      enable_language(CUDA)
      if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
        message(STATUS "CUDA plug-ins: off, nvcc is ${CMAKE_CUDA_COMPILER_VERSION}, 12.8 is needed")
      else()
        find_package(CUDAToolkit REQUIRED)
        set(MSGL_CUDA ON)
        message(STATUS "CUDA plug-ins: on, nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${MSGL_CUDA_ARCHS}")
      endif()
    endif()
  endif()
endif()
if(msgl_cuda_wanted STREQUAL "ON" AND NOT MSGL_CUDA AND SAN STREQUAL "")
  message(FATAL_ERROR "-DMSGL_CUDA=ON: needs nvcc 12.8 or newer on the PATH or in CUDACXX")
endif()

set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo")
option(MSGL_CUDA_QUICK "compile in a third of the time, for CI: slow kernels, few instances" OFF)
set(msgl_cuda_quick_flag "") # of our own kernels: CUTLASS' take longer with it
if(MSGL_CUDA AND MSGL_CUDA_QUICK)
  include(CheckCompilerFlag)
  check_compiler_flag(CUDA --Ofast-compile=max MSGL_NVCC_FAST_COMPILE)
  if(MSGL_NVCC_FAST_COMPILE)
    set(msgl_cuda_quick_flag --Ofast-compile=max)
  endif()
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

# msgl_cuda_archs(FILES... [ONLY ARCH...]): compiles the files for all of MSGL_CUDA_ARCHS, or for
# those of them that ONLY names.
function(msgl_cuda_archs)
  cmake_parse_arguments(A "" "" "ONLY" ${ARGN})
  set(flags "")
  foreach(arch ${MSGL_CUDA_ARCHS})
    if(NOT A_ONLY OR arch IN_LIST A_ONLY)
      list(APPEND flags -gencode=arch=compute_${arch},code=sm_${arch})
    endif()
  endforeach()
  set_property(SOURCE ${A_UNPARSED_ARGUMENTS} APPEND PROPERTY COMPILE_OPTIONS ${flags})
endfunction()

# msgl_cuda_plugin(NAME SOURCES ... [LIBS ...]): NAME.so beside the binary; it exports what is
# marked for it and nothing else.
function(msgl_cuda_plugin name)
  cmake_parse_arguments(P "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} MODULE ${P_SOURCES})
  set_target_properties(${name} PROPERTIES PREFIX "" CUDA_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src
                                             ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE ${P_LIBS} CUDA::cudart_static)
  target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,defs)
  install(TARGETS ${name} LIBRARY DESTINATION lib/minisgl)
endfunction()

# msgl_cuda_program(NAME [ON_REQUEST] SOURCES ... [LIBS ...]): a test or benchmark for a GPU, which CI only
# builds. It lies beside the plug-ins. ON_REQUEST: not part of `all`.
function(msgl_cuda_program name)
  cmake_parse_arguments(T "ON_REQUEST" "" "SOURCES;LIBS" ${ARGN})
  msgl_cuda_archs(${T_SOURCES} ONLY 90a)
  set_property(SOURCE ${T_SOURCES} APPEND PROPERTY COMPILE_OPTIONS
               $<$<COMPILE_LANGUAGE:CUDA>:${msgl_cuda_quick_flag}>)
  add_executable(${name} ${T_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
                                           EXCLUDE_FROM_ALL ${T_ON_REQUEST})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src
                                             ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE ${T_LIBS})
endfunction()
