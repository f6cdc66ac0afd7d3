# Language level, flags and ccache, the same for every target, so that they can share one
# precompiled header.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
# Line tables are what a backtrace needs; full debug information doubles the link time.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# Sanitizers make GCC warn about code that is fine.
if(PROJECT_IS_TOP_LEVEL AND NOT MOONCAKE_SANITIZE AND NOT DEFINED CMAKE_COMPILE_WARNING_AS_ERROR)
  set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
endif()

# Code that includes a precompiled header can only be cached when ccache is told that the header
# cannot change behind its back, which holds as the build system rebuilds it. With relative paths
# the build folders of one checkout (dev and the wheel have the same flags) share what they compile.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime;CCACHE_BASEDIR=${PROJECT_SOURCE_DIR};CCACHE_NOHASHDIR=1;${CCACHE_PROGRAM}")
endif()

add_library(mooncake_flags INTERFACE)
# -pthread everywhere: it defines a macro, on which the precompiled header has to agree.
target_compile_options(mooncake_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers -fno-omit-frame-pointer -pthread)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(mooncake_flags INTERFACE -fpch-preprocess)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(mooncake_flags INTERFACE -Wthread-safety)
endif()
if(MOONCAKE_SANITIZE STREQUAL "address")
  set(_sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(MOONCAKE_SANITIZE STREQUAL "thread")
  set(_sanitizers -fsanitize=thread)
  # GCC warns on each fence: TSan does not model them. The code that uses one says why it may.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(mooncake_flags INTERFACE -Wno-tsan)
  endif()
elseif(MOONCAKE_SANITIZE)
  message(FATAL_ERROR "MOONCAKE_SANITIZE is '${MOONCAKE_SANITIZE}'; use address, thread or nothing")
endif()
if(MOONCAKE_SANITIZE)
  # The directory scope covers generated code too.
  add_compile_options(${_sanitizers})
  add_link_options(${_sanitizers})
endif()

set(MOONCAKE_PCH_STD_HEADERS
    <algorithm> <array> <atomic> <chrono> <cstddef> <cstdint> <cstring> <functional> <map> <memory>
    <mutex> <optional> <set> <span> <string> <string_view> <tuple> <unordered_map> <utility>
    <variant> <vector>)

# One target builds the header, the others reuse it.
file(WRITE "${PROJECT_BINARY_DIR}/pch/pch.cc.new" "// The precompiled header needs one source.\n")
file(COPY_FILE "${PROJECT_BINARY_DIR}/pch/pch.cc.new" "${PROJECT_BINARY_DIR}/pch/pch.cc"
     ONLY_IF_DIFFERENT)
add_library(mooncake_pch OBJECT "${PROJECT_BINARY_DIR}/pch/pch.cc")
target_link_libraries(mooncake_pch PRIVATE mooncake_flags)
target_precompile_headers(mooncake_pch PRIVATE ${MOONCAKE_PCH_STD_HEADERS})
