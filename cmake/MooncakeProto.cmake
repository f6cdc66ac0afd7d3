# Code from .proto files. Paths are relative to proto/, which is also the include root of what is
# generated: proto/mooncake/v1/node.proto becomes "mooncake/v1/node.pb.h".

include_guard(GLOBAL)

set(MOONCAKE_PROTO_OUT "${PROJECT_BINARY_DIR}/generated")
file(MAKE_DIRECTORY "${MOONCAKE_PROTO_OUT}")

# Lets a target include generated headers and waits for them.
add_library(mooncake_proto_headers INTERFACE)
target_include_directories(mooncake_proto_headers SYSTEM INTERFACE "${MOONCAKE_PROTO_OUT}")

# mooncake_generate_proto(<out variable> [GRPC] PROTOS <files below proto/...>)
#
# Sets the variable to the generated .cc files; GRPC also makes the service stubs
# ("<name>.grpc.pb.h").
function(mooncake_generate_proto out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "GRPC" "" "PROTOS")
  set(sources)
  foreach(proto IN LISTS arg_PROTOS)
    string(REGEX REPLACE "\\.proto$" "" stem "${proto}")
    set(made "${MOONCAKE_PROTO_OUT}/${stem}.pb.cc")
    set(headers "${MOONCAKE_PROTO_OUT}/${stem}.pb.h")
    set(grpc_flags)
    if(arg_GRPC)
      list(APPEND made "${MOONCAKE_PROTO_OUT}/${stem}.grpc.pb.cc")
      list(APPEND headers "${MOONCAKE_PROTO_OUT}/${stem}.grpc.pb.h")
      set(grpc_flags "--grpc_out=${MOONCAKE_PROTO_OUT}"
                     "--plugin=protoc-gen-grpc=${MOONCAKE_GRPC_PLUGIN}")
    endif()
    add_custom_command(
      OUTPUT ${made} ${headers}
      COMMAND protobuf::protoc "--proto_path=${PROJECT_SOURCE_DIR}/proto"
              "--cpp_out=${MOONCAKE_PROTO_OUT}" ${grpc_flags} "${PROJECT_SOURCE_DIR}/proto/${proto}"
      DEPENDS "${PROJECT_SOURCE_DIR}/proto/${proto}"
      COMMENT "Generating ${stem}.pb"
      VERBATIM)
    list(APPEND sources ${made})
  endforeach()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# mooncake_proto_layer(<name> [GRPC] PROTOS <files below proto/...>)
#
# A layer of generated code only, to be named in DEPS by those that include its headers.
function(mooncake_proto_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "GRPC" "" "PROTOS")
  set(flags)
  set(libs protobuf::libprotobuf)
  if(arg_GRPC)
    set(flags GRPC)
    list(APPEND libs gRPC::grpc++)
  endif()
  mooncake_generate_proto(sources ${flags} PROTOS ${arg_PROTOS})
  string(REPLACE "/" "_" target "mooncake_${name}")
  add_library(${target} OBJECT ${sources})
  set_target_properties(${target} PROPERTIES COMPILE_WARNING_AS_ERROR OFF)
  target_include_directories(${target} SYSTEM PUBLIC "${MOONCAKE_PROTO_OUT}")
  target_link_libraries(${target} PUBLIC ${libs})
  add_dependencies(mooncake_proto_headers ${target})
  set_property(GLOBAL APPEND PROPERTY MOONCAKE_LAYERS ${target})
  set_property(GLOBAL APPEND PROPERTY MOONCAKE_LAYER_LIBS ${libs})
endfunction()
