# Third-party packages, each with one home (see docs/CONTRIBUTING.md). The installed package file
# looks for the same ones, as the archive is static.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)                  # metadata/net: OpenSSL::SSL; transfer/tcp: Crypto
find_package(Hiredis REQUIRED MODULE)           # metadata/redis: hiredis::hiredis
find_package(Nghttp2 REQUIRED MODULE)           # metadata/net: nghttp2::nghttp2
find_package(SQLite3 REQUIRED)                  # metadata/sqlite: SQLite::SQLite3
find_package(Protobuf REQUIRED)                 # proto: protobuf::libprotobuf
find_package(gRPC CONFIG REQUIRED)              # daemon, client: gRPC::grpc++
find_package(fmt CONFIG REQUIRED)               # obs: fmt::fmt
find_package(spdlog CONFIG REQUIRED)            # obs: spdlog::spdlog
find_package(prometheus-cpp CONFIG REQUIRED)    # obs: prometheus-cpp::core
find_package(xxhash REQUIRED MODULE)            # base: xxhash::xxhash, header only
find_package(nlohmann_json CONFIG REQUIRED)     # nlohmann_json::nlohmann_json
find_package(CLI11 CONFIG REQUIRED)             # daemon, admin, bench: CLI11::CLI11
find_package(httplib REQUIRED MODULE)           # obs: httplib::httplib
find_package(Numa MODULE)                       # numa::numa, optional
find_package(Ibverbs MODULE)                    # transfer/rdma: ibverbs::ibverbs, optional

if(TARGET gRPC::grpc_cpp_plugin)
  set(MOONCAKE_GRPC_PLUGIN $<TARGET_FILE:gRPC::grpc_cpp_plugin>)
else()
  find_program(MOONCAKE_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
endif()
