# Defines the target nghttp2::nghttp2 (Debian's libnghttp2 is known to pkg-config only).
find_path(Nghttp2_INCLUDE_DIR nghttp2/nghttp2.h)
find_library(Nghttp2_LIBRARY nghttp2)
mark_as_advanced(Nghttp2_INCLUDE_DIR Nghttp2_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Nghttp2 REQUIRED_VARS Nghttp2_LIBRARY Nghttp2_INCLUDE_DIR)
if(Nghttp2_FOUND AND NOT TARGET nghttp2::nghttp2)
  add_library(nghttp2::nghttp2 UNKNOWN IMPORTED)
  set_target_properties(nghttp2::nghttp2 PROPERTIES IMPORTED_LOCATION "${Nghttp2_LIBRARY}"
                        INTERFACE_INCLUDE_DIRECTORIES "${Nghttp2_INCLUDE_DIR}")
endif()
