# The public headers, by name; each must compile alone.
set(MOONCAKE_PUBLIC_HEADERS)
foreach(header IN ITEMS bytes.h config.h result.h store.h dummy.h memory_hold.h tenant_policy.h buffer_pool.h observability.h)
  if(EXISTS "${PROJECT_SOURCE_DIR}/include/mooncake/${header}")
    list(APPEND MOONCAKE_PUBLIC_HEADERS "${PROJECT_SOURCE_DIR}/include/mooncake/${header}")
  endif()
endforeach()
