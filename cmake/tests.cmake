# SPDX-License-Identifier: Apache-2.0
# Seconds after which a test counts as hanging; a sanitizer on a busy machine is slow.
set(MSGL_TEST_TIMEOUT 600)
if(NOT SAN STREQUAL "")
  set(MSGL_TEST_TIMEOUT 1500)
endif()

# Most tests' own files are compiled with -O1, in three quarters of the time; folders whose tests compute what they
# compare with set another.
set(MSGL_TEST_OPTIMIZE -O1)

# msgl_test_objects(TARGET FILES... [LIBS ...]): links the files, which several tests share, into the target.
# Each is compiled once for all of them, as the object library of its path: tests/server/fixture.c is
# shared_tests_server_fixture. LIBS are for its headers; the first test that names the file gives them.
function(msgl_test_objects target)
  cmake_parse_arguments(O "" "" "LIBS" ${ARGN})
  foreach(file ${O_UNPARSED_ARGUMENTS})
    get_filename_component(path ${file} ABSOLUTE)
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${path})
    string(REGEX REPLACE "\\.c$" "" name ${name})
    string(MAKE_C_IDENTIFIER shared_${name} name)
    if(NOT TARGET ${name})
      add_library(${name} OBJECT EXCLUDE_FROM_ALL ${path})
      target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
      target_compile_definitions(${name} PRIVATE
        MSGL_SOURCE_DIR="${PROJECT_SOURCE_DIR}" MSGL_BINARY_DIR="${PROJECT_BINARY_DIR}")
      target_link_libraries(${name} PRIVATE ${O_LIBS} PkgConfig::CMOCKA)
      target_compile_options(${name} PRIVATE ${MSGL_TEST_OPTIMIZE})
    endif()
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${name}>)
  endforeach()
endfunction()

# msgl_nightly([SANITIZED] TESTS...): labels tests of this folder that are left to .ci/nightly; SANITIZED: in
# trees of a sanitizer alone. `make check` and .ci/run take `ctest -LE nightly`.
function(msgl_nightly)
  cmake_parse_arguments(N "SANITIZED" "" "" ${ARGN})
  if(NOT N_SANITIZED OR NOT SAN STREQUAL "")
    set_property(TEST ${N_UNPARSED_ARGUMENTS} APPEND PROPERTY LABELS nightly)
  endif()
endfunction()

# The programs of the tests that are not `nightly`, and of those with the label `threads`: what a tree of a
# sanitizer needs of the tests (`ninja tests_commit`, `ninja tests_threads`).
add_custom_target(tests_commit)
add_custom_target(tests_threads)

# msgl_test_program(TEST TARGET): says which program a test of this folder runs, for tests_commit and
# tests_threads. Labels count as they are at the end of the folder.
function(msgl_test_program test target)
  cmake_language(EVAL CODE "cmake_language(DEFER CALL msgl_add_test_program ${test} ${target})")
endfunction()
function(msgl_add_test_program test target)
  get_property(labels TEST ${test} PROPERTY LABELS)
  if(NOT nightly IN_LIST labels)
    add_dependencies(tests_commit ${target})
  endif()
  if(threads IN_LIST labels)
    add_dependencies(tests_threads ${target})
  endif()
endfunction()

# msgl_test(NAME [SERIAL] [THREADS N] SOURCES FILE [SHARED...] [LIBS ...]): a cmocka program and the CTest of
# the same name. FILE is the test's own; the SHARED ones are compiled once for all tests that name them.
# Tests run at the same time on the cores there are. THREADS: its pools spin on so many of them. SERIAL: it
# runs alone, since it measures time or binds threads; ports, locks and timeouts are no reason: a test takes any
# free port and waits for what happens.
function(msgl_test name)
  cmake_parse_arguments(T "SERIAL" "THREADS" "SOURCES;LIBS" ${ARGN})
  list(POP_FRONT T_SOURCES own)
  add_executable(test_${name} ${own})
  msgl_test_objects(test_${name} ${T_SOURCES} LIBS ${T_LIBS})
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(test_${name} PRIVATE
    MSGL_SOURCE_DIR="${PROJECT_SOURCE_DIR}" MSGL_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_link_libraries(test_${name} PRIVATE ${T_LIBS} PkgConfig::CMOCKA)
  target_compile_options(test_${name} PRIVATE ${MSGL_TEST_OPTIMIZE})
  add_test(NAME ${name} COMMAND test_${name})
  msgl_test_program(${name} test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${MSGL_TEST_TIMEOUT}
                                           RUN_SERIAL ${T_SERIAL})
  if(T_THREADS)
    set_tests_properties(${name} PROPERTIES PROCESSORS ${T_THREADS})
  endif()
endfunction()

# msgl_full(TESTS...): each of these tests once more as TEST_full, for .ci/nightly, with what the programs leave
# out where the variable MINISGL_TESTS is not `full`.
function(msgl_full)
  foreach(test ${ARGN})
    add_test(NAME ${test}_full COMMAND test_${test})
    get_property(processors TEST ${test} PROPERTY PROCESSORS)
    set_tests_properties(${test}_full PROPERTIES TIMEOUT 1500 LABELS nightly ENVIRONMENT MINISGL_TESTS=full)
    if(processors)
      set_tests_properties(${test}_full PROPERTIES PROCESSORS ${processors})
    endif()
  endforeach()
endfunction()
