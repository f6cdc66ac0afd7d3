# The sources of mooncake._store.
set(MOONCAKE_PYTHON_SOURCES
    args.cc errors.cc gil.cc host_allocator.cc module.cc observability.cc pointers.cc pool_lease.cc
    replicate.cc store_buffers.cc store_capacity.cc store_get.cc store_keys.cc
    store_multi_buffers.cc store_object.cc store_policies.cc store_put.cc
    store_ranges.cc store_tensors.cc store_views.cc values.cc)
