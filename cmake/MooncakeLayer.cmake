# How the library is put together: one object library per layer, one archive of all of them.

include_guard(GLOBAL)

# mooncake_layer(<name> SOURCES <files...> [DEPS <layers...>] [LIBS <third-party targets...>])
#
# Makes the object library mooncake_<name> (slashes become underscores) and puts it into
# mooncake_store. DEPS name the layers whose generated headers or usage requirements are needed;
# LIBS are third-party targets, which reach the final link of mooncake_store.
function(mooncake_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS;LIBS")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
    message(FATAL_ERROR "mooncake_layer(${name}): wrong arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  string(REPLACE "/" "_" target "mooncake_${name}")
  add_library(${target} OBJECT ${arg_SOURCES})
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/include"
                                              "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${target} PRIVATE mooncake_flags ${arg_LIBS})
  foreach(dep IN LISTS arg_DEPS)
    string(REPLACE "/" "_" dep "mooncake_${dep}")
    # A layer may be named before its folder exists.
    target_link_libraries(${target} PUBLIC $<TARGET_NAME_IF_EXISTS:${dep}>)
  endforeach()
  target_precompile_headers(${target} REUSE_FROM mooncake_pch)
  set_property(GLOBAL APPEND PROPERTY MOONCAKE_LAYERS ${target})
  set_property(GLOBAL APPEND PROPERTY MOONCAKE_LAYER_LIBS ${arg_LIBS})
endfunction()

# mooncake_tool(<binary name> SOURCES <files...> [LIBS <third-party targets...>])
#
# A program that links the library and is installed; in a wheel it becomes a script.
function(mooncake_tool name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${name} PRIVATE mooncake_flags mooncake_store mooncake_proto_headers
                                        ${arg_LIBS})
  if(SKBUILD)
    install(TARGETS ${name} RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}")
  else()
    install(TARGETS ${name} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools)
  endif()
endfunction()

# Adds each folder, given from the project's root, that holds a CMakeLists.txt.
function(mooncake_add_subdirectories)
  foreach(folder IN LISTS ARGN)
    if(EXISTS "${PROJECT_SOURCE_DIR}/${folder}/CMakeLists.txt")
      add_subdirectory("${PROJECT_SOURCE_DIR}/${folder}" "${PROJECT_BINARY_DIR}/${folder}")
    endif()
  endforeach()
endfunction()

# Gathers the layers into mooncake_store (alias mooncake::store, file libstore.a).
function(mooncake_add_store_library)
  get_property(layers GLOBAL PROPERTY MOONCAKE_LAYERS)
  get_property(libs GLOBAL PROPERTY MOONCAKE_LAYER_LIBS)
  list(REMOVE_DUPLICATES libs)
  add_library(mooncake_store STATIC "${PROJECT_BINARY_DIR}/pch/pch.cc")
  add_library(mooncake::store ALIAS mooncake_store)
  foreach(layer IN LISTS layers)
    target_sources(mooncake_store PRIVATE $<TARGET_OBJECTS:${layer}>)
  endforeach()
  # A build-only interface: the flags must not show up in the exported target.
  target_link_libraries(mooncake_store PRIVATE $<BUILD_INTERFACE:mooncake_flags> Threads::Threads
                                               ${libs})
  set_target_properties(mooncake_store PROPERTIES OUTPUT_NAME store EXPORT_NAME store
                                                  VERIFY_INTERFACE_HEADER_SETS ON)
  target_compile_features(mooncake_store PUBLIC cxx_std_20)
  include("${PROJECT_SOURCE_DIR}/cmake/MooncakePublicHeaders.cmake")
  target_sources(mooncake_store PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include"
                                       FILES ${MOONCAKE_PUBLIC_HEADERS})
endfunction()
