# SPDX-License-Identifier: Apache-2.0
# What calls MPI is in a plug-in, built where an MPI's development package is. Nothing else of the
# project is compiled or linked with it. -DMSGL_MPI=OFF leaves it out, ON insists on it.
set(MSGL_MPI AUTO CACHE STRING "build the MPI plug-in: AUTO (if there is an MPI), ON, OFF")

set(msgl_mpi_wanted ${MSGL_MPI})
set(MSGL_MPI OFF) # from here on: whether it is built
if(msgl_mpi_wanted AND SAN STREQUAL "")
  find_package(MPI COMPONENTS C)
  if(MPI_C_FOUND)
    set(MSGL_MPI ON)
    message(STATUS "MPI plug-in: on, ${MPI_C_LIBRARIES}")
  else()
    message(STATUS "MPI plug-in: off, no MPI found")
  endif()
endif()
if(msgl_mpi_wanted STREQUAL "ON" AND NOT MSGL_MPI AND SAN STREQUAL "")
  message(FATAL_ERROR "-DMSGL_MPI=ON: needs an MPI (Debian: libopenmpi-dev)")
endif()
