# Defines the target ibverbs::ibverbs (libibverbs is known to pkg-config only).
find_path(Ibverbs_INCLUDE_DIR infiniband/verbs.h)
find_library(Ibverbs_LIBRARY ibverbs)
mark_as_advanced(Ibverbs_INCLUDE_DIR Ibverbs_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Ibverbs REQUIRED_VARS Ibverbs_LIBRARY Ibverbs_INCLUDE_DIR)
if(Ibverbs_FOUND AND NOT TARGET ibverbs::ibverbs)
  add_library(ibverbs::ibverbs UNKNOWN IMPORTED)
  set_target_properties(ibverbs::ibverbs PROPERTIES IMPORTED_LOCATION "${Ibverbs_LIBRARY}"
                        INTERFACE_INCLUDE_DIRECTORIES "${Ibverbs_INCLUDE_DIR}")
endif()
