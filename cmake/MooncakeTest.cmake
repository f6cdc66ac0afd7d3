# Test binaries: one per layer and kind, one ctest entry each.

include_guard(GLOBAL)

find_package(GTest REQUIRED)

# The heavy test headers, compiled once.
add_library(mooncake_test_pch OBJECT "${PROJECT_BINARY_DIR}/pch/pch.cc")
target_link_libraries(mooncake_test_pch PRIVATE mooncake_flags GTest::gtest GTest::gmock)
target_precompile_headers(mooncake_test_pch PRIVATE ${MOONCAKE_PCH_STD_HEADERS} <gtest/gtest.h>
                                                    <gmock/gmock.h>)

# Usage requirements that tests and their support library share.
add_library(mooncake_test_common INTERFACE)
target_include_directories(mooncake_test_common INTERFACE "${PROJECT_SOURCE_DIR}/src"
                                                          "${PROJECT_SOURCE_DIR}/tests")
target_link_libraries(mooncake_test_common INTERFACE mooncake_store mooncake_proto_headers
                                                     GTest::gtest GTest::gmock)

# mooncake_testing(SOURCES <files...> [LIBS <targets...>])
#
# Adds files to the support library that every test links. It may be called more than once.
function(mooncake_testing)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;LIBS")
  if(NOT TARGET mooncake_testing)
    add_library(mooncake_testing STATIC)
    add_library(mooncake::testing ALIAS mooncake_testing)
    target_link_libraries(mooncake_testing PUBLIC mooncake_test_common PRIVATE mooncake_flags)
    target_precompile_headers(mooncake_testing REUSE_FROM mooncake_test_pch)
  endif()
  list(TRANSFORM arg_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  target_sources(mooncake_testing PRIVATE ${arg_SOURCES})
  target_link_libraries(mooncake_testing PUBLIC ${arg_LIBS})
endfunction()

# mooncake_test(<kind> <name> SOURCES <files...> [LIBS <targets...>] [TIMEOUT <seconds>]
#               [RUN_SERIAL] [NO_SANITIZE])
#
# Makes the binary <kind>_<name> and the ctest entry <kind>.<name> with the label <kind>.
# NO_SANITIZE leaves it out of sanitizer builds (foreign libraries that they cannot follow).
function(mooncake_test kind name)
  cmake_parse_arguments(PARSE_ARGV 2 arg "RUN_SERIAL;NO_SANITIZE" "TIMEOUT" "SOURCES;LIBS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "mooncake_test(${kind} ${name}): wrong arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(MOONCAKE_SANITIZE AND arg_NO_SANITIZE)
    return()
  elseif(MOONCAKE_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")
  endif()
  set(target "${kind}_${name}")
  add_executable(${target} ${arg_SOURCES})
  target_link_libraries(${target} PRIVATE mooncake_flags mooncake_test_common GTest::gtest_main
                                          ${arg_LIBS})
  if(TARGET mooncake_testing)
    target_link_libraries(${target} PRIVATE mooncake_testing)
  endif()
  # An executable would be compiled with -fPIE, which does not fit the shared precompiled header.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM mooncake_test_pch)
  add_test(NAME "${kind}.${name}" COMMAND ${target})
  set_tests_properties("${kind}.${name}" PROPERTIES LABELS "${kind}" TIMEOUT ${arg_TIMEOUT})
  if(arg_RUN_SERIAL)
    set_tests_properties("${kind}.${name}" PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()
