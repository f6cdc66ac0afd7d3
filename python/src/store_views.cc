// What a store tells about itself and the cluster, and its lifecycle.
#include <string>

#include "pool_lease.h"
#include "store_object.h"

namespace mooncake::python {
namespace {

bool ParseNothing(const char* method, const CallArgs& args) {
  const Signature<0> signature{method, {}, 0, 0};
  std::array<PyObject*, 0> none;
  return ParseArgs(signature, args, none);
}

PyObject* Text(std::string_view text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

// Puts a value that was just made into a dict. False: an exception is set.
bool Put(PyObject* dict, const char* name, PyObject* owned) {
  const Ref value(owned);
  return value && PyDict_SetItemString(dict, name, value.get()) == 0;
}

// A list of what `make` gives for each element.
template <typename Elements, typename Make>
PyObject* ListOf(const Elements& elements, Make make) {
  Ref list(PyList_New(static_cast<Py_ssize_t>(elements.size())));
  for (size_t i = 0; list && i < elements.size(); ++i) {
    PyObject* item = make(elements[i]);
    if (item == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item);
  }
  return list.Release();
}

PyObject* Unsigned(uint64_t number) { return PyLong_FromUnsignedLongLong(number); }

PyObject* DictOf(const ReplicaInfo& replica) {
  Ref dict(PyDict_New());
  const bool made = dict && Put(dict.get(), "owner", Text(replica.owner)) &&
                    Put(dict.get(), "segment_name", Text(replica.segment_name)) &&
                    Put(dict.get(), "offset", Unsigned(replica.segment_offset)) &&
                    Put(dict.get(), "segment_offset", Unsigned(replica.segment_offset)) &&
                    Put(dict.get(), "length", Unsigned(replica.length)) &&
                    Put(dict.get(), "priority", Unsigned(replica.priority)) &&
                    Put(dict.get(), "tier", Text(replica.tier));
  return made ? dict.Release() : nullptr;
}

PyObject* DictOf(const RouteInfo& route) {
  Ref dict(PyDict_New());
  const auto replica = [](const ReplicaInfo& info) { return DictOf(info); };
  const bool made = dict && Put(dict.get(), "key", Text(route.key)) &&
                    Put(dict.get(), "version", Unsigned(route.version)) &&
                    Put(dict.get(), "size", Unsigned(route.size)) &&
                    Put(dict.get(), "state", Text(route.state)) &&
                    Put(dict.get(), "replicas", ListOf(route.replicas, replica));
  return made ? dict.Release() : nullptr;
}

PyObject* DictOf(const SegmentInfo& segment) {
  Ref dict(PyDict_New());
  const auto text = [](const std::string& tag) { return Text(tag); };
  const bool made = dict && Put(dict.get(), "owner", Text(segment.owner)) &&
                    Put(dict.get(), "segment_name", Text(segment.segment_name)) &&
                    Put(dict.get(), "transport_endpoint", Text(segment.transport_endpoint)) &&
                    Put(dict.get(), "capacity_bytes", Unsigned(segment.capacity_bytes)) &&
                    Put(dict.get(), "used_bytes", Unsigned(segment.used_bytes)) &&
                    Put(dict.get(), "state", Text(segment.state)) &&
                    Put(dict.get(), "alignment_bytes", Unsigned(segment.alignment_bytes)) &&
                    Put(dict.get(), "tags", ListOf(segment.tags, text));
  return made ? dict.Release() : nullptr;
}

constexpr Signature<2> kQueryRoute{"query_route", {"key", "tenant"}, 1, 1};

PyObject* QueryRoute(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 2> given;
  std::string_view key;
  std::string_view tenant;
  if (!ParseArgs(kQueryRoute, args, given) || !KeyFrom(given[0], {"query_route", "key"}, &key) ||
      !TextFrom(given[1], {"query_route", "tenant"}, &tenant)) {
    return nullptr;
  }
  const Call call(self, "query_route");
  if (!call) return nullptr;
  Result<RouteInfo> route = NotFound({});
  {
    WithoutGil released;
    route = call->QueryRoute(key, tenant);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (route.ok()) return DictOf(*route);
  if (route.code() == ErrorCode::kNotFound) Py_RETURN_NONE;
  return Raise(route.error());
}

constexpr Signature<1> kListSegments{"list_segments", {"all"}, 1, 0};

PyObject* ListSegments(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 1> given;
  bool all = false;
  if (!ParseArgs(kListSegments, args, given) || !FlagFrom(given[0], &all)) return nullptr;
  const Call call(self, "list_segments");
  if (!call) return nullptr;
  if (call->is_dummy()) return RaiseRuntime("list_segments() is not available in dummy mode");
  std::vector<SegmentInfo> segments;
  {
    WithoutGil released;
    segments = call->ListSegments(all);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  return ListOf(segments, [](const SegmentInfo& segment) { return DictOf(segment); });
}

// A method without arguments whose result is a text.
template <auto kMember>
PyObject* TextOf(PyObject* self, const CallArgs& args, const char* method) {
  if (!ParseNothing(method, args)) return nullptr;
  const Call call(self, method);
  if (!call) return nullptr;
  std::string text;
  {
    WithoutGil released;
    text = (call.store().get()->*kMember)();
  }
  return PyErr_Occurred() != nullptr ? nullptr : Text(text);
}

PyObject* GetHostname(PyObject* self, const CallArgs& args) {
  return TextOf<&Store::Hostname>(self, args, "get_hostname");
}

PyObject* MetricsText(PyObject* self, const CallArgs& args) {
  return TextOf<&Store::MetricsText>(self, args, "metrics_text");
}

PyObject* ZeroOrRaise(const Status& status) {
  if (!status.ok()) return Raise(status.error());
  return PyErr_Occurred() != nullptr ? nullptr : PyLong_FromLong(0);
}

PyObject* Enter(PyObject* self, const CallArgs& args, const char* method, const char* state) {
  if (!ParseNothing(method, args)) return nullptr;
  const Call call(self, method);
  if (!call) return nullptr;
  Status status;
  {
    WithoutGil released;
    status = call->SetState(state);
  }
  return ZeroOrRaise(status);
}

PyObject* Activate(PyObject* self, const CallArgs& args) {
  return Enter(self, args, "activate", "active");
}
PyObject* EnterStandby(PyObject* self, const CallArgs& args) {
  return Enter(self, args, "enter_standby", "standby");
}
PyObject* EnterDraining(PyObject* self, const CallArgs& args) {
  return Enter(self, args, "enter_draining", "draining");
}

constexpr Signature<1> kHeartbeat{"heartbeat", {"expires_at_ms"}, 1, 0};

PyObject* Heartbeat(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 1> given;
  uint64_t expires_at_ms = 0;
  if (!ParseArgs(kHeartbeat, args, given) ||
      (given[0] != nullptr &&
       !UnsignedFrom(given[0], {"heartbeat", "expires_at_ms"}, &expires_at_ms))) {
    return nullptr;
  }
  const Call call(self, "heartbeat");
  if (!call) return nullptr;
  std::optional<uint64_t> expires;
  if (given[0] != nullptr) expires = expires_at_ms;
  Status status;
  {
    WithoutGil released;
    status = call->Heartbeat(expires);
  }
  return ZeroOrRaise(status);
}

PyObject* PoolCapacity(PyObject* self, const CallArgs& args) {
  if (!ParseNothing("local_buffer_pool_capacity", args)) return nullptr;
  const Call call(self, "local_buffer_pool_capacity");
  return call ? Unsigned(call->LocalPoolCapacity()) : nullptr;
}

constexpr Signature<1> kTryAcquire{"local_buffer_pool_try_acquire", {"size"}, 1, 1};

PyObject* PoolTryAcquire(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 1> given;
  uint64_t size = 0;
  if (!ParseArgs(kTryAcquire, args, given) ||
      !UnsignedFrom(given[0], {kTryAcquire.method, "size"}, &size)) {
    return nullptr;
  }
  const Call call(self, kTryAcquire.method);
  if (!call) return nullptr;
  if (call->is_dummy()) {
    return RaiseRuntime("%s() is not available in dummy mode", kTryAcquire.method);
  }
  const std::optional<MutableBytes> memory = call->LocalPoolTryAcquire(size);
  if (!memory.has_value()) Py_RETURN_NONE;
  return NewPoolLease(call.store(), *memory, size);
}

const PyMethodDef kMethods[] = {
    Method<QueryRoute>(
        "query_route",
        "query_route($self, key, *, tenant=None)\n--\n\n"
        "Where the copies of a value are, as a dict; None when there is no value." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> store.query_route(\"key\")[\"replicas\"][0][\"owner\"]\n"
        "    'store-a:1'\n"),
    Method<ListSegments>("list_segments",
                         "list_segments($self, all=False)\n--\n\n"
                         "The own segments, or those of the cluster, as dicts. The state "
                         "\"Draining\" is of those that take no new copies, themselves or with "
                         "their whole node. What others use "
                         "is as of their last heartbeats; for that the metadata service is asked, "
                         "and while it is away, older figures are given." MC_CALL_ERRORS
                         "\n\nExample:\n"
                         "    >>> store.list_segments()[0][\"capacity_bytes\"]\n"
                         "    67108864\n"),
    Method<GetHostname>("get_hostname",
                        "get_hostname($self)\n--\n\n"
                        "The address of the node port, \"host:port\"." MC_CALL_ERRORS
                        "\n\nExample:\n"
                        "    >>> store.get_hostname()\n"
                        "    '127.0.0.1:17111'\n"),
    Method<MetricsText>("metrics_text",
                        "metrics_text($self)\n--\n\n"
                        "The store's metrics in Prometheus' text format." MC_CALL_ERRORS
                        "\n\nExample:\n"
                        "    >>> \"operation_total\" in store.metrics_text()\n"
                        "    True\n"),
    Method<Activate>(
        "activate",
        "activate($self)\n--\n\nTake new values. Returns 0. RuntimeError also while the metadata\n"
        "service is away: the state is what it was." MC_CALL_ERRORS "\n\nExample:\n"
        "    >>> store.activate()\n"
        "    0\n"),
    Method<EnterStandby>(
        "enter_standby",
        "enter_standby($self)\n--\n\nServe, but take no new values. Returns 0. Other nodes\n"
        "hear of it at once, or when the metadata service is back." MC_CALL_ERRORS "\n\nExample:\n"
        "    >>> store.enter_standby()\n"
        "    0\n"),
    Method<EnterDraining>("enter_draining",
                          "enter_draining($self)\n--\n\nPrepare to leave. Returns 0. Other nodes "
                          "hear of it at once, or\n"
                          "when the metadata service is back." MC_CALL_ERRORS "\n\nExample:\n"
                          "    >>> store.enter_draining()\n"
                          "    0\n"),
    Method<Heartbeat>(
        "heartbeat",
        "heartbeat($self, expires_at_ms=None)\n--\n\n"
        "Renew the lease now; it is renewed in the background anyway. Returns 0.\n\n"
        "expires_at_ms, in milliseconds since 1970: when the lease would end if this was its last\n"
        "renewal. As far ahead of now as that is, all later renewals move it. ValueError when it "
        "is not after now." MC_CALL_ERRORS "\n\nExample:\n"
        "    >>> store.heartbeat()\n"
        "    0\n"),
    Method<PoolCapacity>(
        "local_buffer_pool_capacity",
        "local_buffer_pool_capacity($self)\n--\n\n"
        "The bytes of the registered pool behind BufferPool; 0 without one." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> store.local_buffer_pool_capacity()\n"
        "    16777216\n"),
    Method<PoolTryAcquire>("local_buffer_pool_try_acquire",
                           "local_buffer_pool_try_acquire($self, size)\n--\n\n"
                           "A lease of registered memory (ptr, size, release()); None when the\n"
                           "pool is exhausted." MC_CALL_ERRORS "\n\nExample:\n"
                           "    >>> lease = store.local_buffer_pool_try_acquire(4096)\n"
                           "    >>> lease.release()\n"),
};

}  // namespace

std::span<const PyMethodDef> ViewMethods() { return kMethods; }

}  // namespace mooncake::python
