#include "store_object.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "host_allocator.h"
#include "mooncake/config.h"
#include "mooncake/dummy.h"

namespace mooncake::python {
namespace {

struct State {
  std::shared_ptr<Store> store;  // Not set: not set up, or closed.
  uint64_t fork_generation = 0;  // Of the process that set it up.
  bool was_set_up = false;
  bool opening = false;
};

struct StoreObject {
  PyObject_HEAD State state;
};

// Guarded by the GIL. For the interpreter's exit, which must not leave threads behind.
std::set<StoreObject*>& LiveObjects() {
  static std::set<StoreObject*> live;
  return live;
}

// Every store that was opened and is still there, also when its object has let it go while a call
// runs. Guarded by the GIL.
struct OpenedStore {
  std::weak_ptr<Store> store;
  uint64_t fork_generation = 0;
};
std::vector<OpenedStore>& Opened() {
  static std::vector<OpenedStore> opened;
  return opened;
}

State& StateOf(PyObject* self) { return reinterpret_cast<StoreObject*>(self)->state; }

bool IsForeign(const State& state) { return state.fork_generation != ForkGeneration(); }

// Gives up the object's share. What was inherited by a fork is left as it is: its threads do not
// exist here, and its sockets and leases are the parent's.
void Drop(State& state) {
  std::shared_ptr<Store> store = std::exchange(state.store, nullptr);
  if (store == nullptr) return;
  if (IsForeign(state)) {
    LeakInherited(std::move(store));
    return;
  }
  WithoutGil released;
  store->Close();
  store.reset();
}

PyObject* New(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  std::construct_at(&StateOf(self));
  LiveObjects().insert(reinterpret_cast<StoreObject*>(self));
  return self;
}

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject *error_type, *error, *traceback;
  PyErr_Fetch(&error_type, &error, &traceback);
  LiveObjects().erase(reinterpret_cast<StoreObject*>(self));
  Drop(StateOf(self));
  std::destroy_at(&StateOf(self));
  PyErr_Restore(error_type, error, traceback);
  type->tp_free(self);
  Py_DECREF(type);
}

bool TextsFrom(PyObject* dict, const Where& where, std::map<std::string, std::string>* texts) {
  if (!PyDict_Check(dict)) return WrongType(where, "dict", dict);
  PyObject *name, *value;
  Py_ssize_t at = 0;
  while (PyDict_Next(dict, &at, &name, &value) != 0) {
    std::string_view name_text;
    std::string_view value_text;
    if (!NameFrom(name, where, &name_text)) return false;
    // The name's bytes end with a NUL, as all that Python has for a str do.
    if (!NameFrom(value, {where.method, name_text.data()}, &value_text)) return false;
    texts->emplace(name_text, value_text);
  }
  return true;
}

using Texts = std::map<std::string, std::string>;

// What `setup` and `setup_dummy` share: `read` makes a configuration out of the texts, `open` a
// store out of that.
template <typename Config>
PyObject* OpenWith(PyObject* self, const CallArgs& args, const char* method,
                   Result<Config> (*read)(const Texts&, const Texts&),
                   Result<std::unique_ptr<Store>> (*open)(const Config&)) {
  const Signature<2> signature{method, {"values", "environment"}, 2, 2};
  std::array<PyObject*, 2> given;
  Texts values;
  Texts environment;
  if (!ParseArgs(signature, args, given) || !TextsFrom(given[0], {method, "values"}, &values) ||
      !TextsFrom(given[1], {method, "environment"}, &environment)) {
    return nullptr;
  }
  State& state = StateOf(self);
  if (state.opening) return RaiseRuntime("%s: another thread is setting this store up", method);
  const Result<Config> config = read(values, environment);
  if (!config) return RaiseValue("%s: %s", method, config.error().context.c_str());

  state.opening = true;
  Drop(state);
  Result<std::unique_ptr<Store>> opened = InvalidState("not opened");
  {
    WithoutGil released;
    opened = open(*config);
  }
  state.opening = false;
  if (!opened) return Raise(opened.error());
  state.store = std::move(*opened);
  state.fork_generation = ForkGeneration();
  state.was_set_up = true;
  std::erase_if(Opened(), [](const OpenedStore& known) { return known.store.expired(); });
  Opened().push_back({state.store, state.fork_generation});
  if (PyErr_Occurred() != nullptr) {  // A signal came too late to stop the work.
    Drop(state);
    return nullptr;
  }
  return PyLong_FromLong(0);
}

PyObject* Open(PyObject* self, const CallArgs& args) {
  return OpenWith<StoreConfig>(self, args, "setup", ConfigFromValues, Store::Open);
}

Result<std::unique_ptr<Store>> OpenDummyStore(const DummyConfig& config) {
  DummyConfig with_memory = config;
  with_memory.find_shared = FindHostMemory;
  return Store::OpenDummy(with_memory);
}

PyObject* OpenDummy(PyObject* self, const CallArgs& args) {
  return OpenWith<DummyConfig>(self, args, "setup_dummy", DummyConfigFromValues, OpenDummyStore);
}

constexpr Signature<0> kClose{"close", {}, 0, 0};

PyObject* Close(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 0> none;
  if (!ParseArgs(kClose, args, none)) return nullptr;
  Drop(StateOf(self));
  if (PyErr_Occurred() != nullptr) return nullptr;
  Py_RETURN_NONE;
}

constexpr Signature<0> kHealthCheck{"health_check", {}, 0, 0};

PyObject* HealthCheck(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 0> none;
  if (!ParseArgs(kHealthCheck, args, none)) return nullptr;
  const State& state = StateOf(self);
  if (state.store == nullptr || IsForeign(state) || state.store->closed()) {
    return PyLong_FromLong(1);
  }
  const Call call(self, "health_check");
  Status health;
  {
    WithoutGil released;
    health = call->CheckHealth();
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (health.code() == ErrorCode::kTransport) return PyLong_FromLong(2);
  return PyLong_FromLong(health.ok() ? 0 : 1);
}

const PyMethodDef kMethods[] = {
    Method<Open>("_open",
                 "_open($self, values, environment)\n--\n\n"
                 "Join the cluster with these settings, as texts by name; closes an open store."),
    Method<OpenDummy>("_open_dummy",
                      "_open_dummy($self, values, environment)\n--\n\n"
                      "Become a client of a daemon, with these settings; closes an open store."),
    Method<Close>("close",
                  "close($self)\n--\n\n"
                  "Leave the cluster. Idempotent; setup() works again afterwards."
                  "\n\nExample:\n"
                  "    >>> store.close()\n"),
    Method<HealthCheck>("health_check",
                        "health_check($self)\n--\n\n"
                        "0 when the store is set up, else 1, also when another process has taken\n"
                        "its stable_id over; of a daemon's client, 2 when the daemon does not\n"
                        "answer. Never raises."
                        "\n\nExample:\n"
                        "    >>> store.health_check()\n"
                        "    0\n"),
};

// Closes what is open when the interpreter exits.
PyObject* CloseAll(PyObject*, PyObject*) {
  std::vector<std::shared_ptr<Store>> open;
  for (StoreObject* object : LiveObjects()) {
    if (object->state.store != nullptr && !IsForeign(object->state)) {
      open.push_back(object->state.store);
    }
  }
  {
    WithoutGil released;
    for (const std::shared_ptr<Store>& store : open) store->Close();
    open.clear();
  }
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyMethodDef kCloseAll{"_close_all", CloseAll, METH_NOARGS,
                      "_close_all()\n--\n\nClose every store of this process."};

std::vector<PyMethodDef>& AllMethods() {
  static std::vector<PyMethodDef> all;
  if (!all.empty()) return all;
  for (const auto& methods : {LifecycleMethods(), CapacityMethods(), PolicyMethods(), PutMethods(),
                              GetMethods(), KeyMethods(), BufferMethods(), MultiBufferMethods(),
                              RangeMethods(), ViewMethods(), TensorMethods()}) {
    all.insert(all.end(), methods.begin(), methods.end());
  }
  all.push_back({});
  return all;
}

bool CloseAtExit(PyObject* module) {
  const Ref close(PyCFunction_NewEx(&kCloseAll, nullptr, nullptr));
  if (!close || PyModule_AddObjectRef(module, "_close_all", close.get()) != 0) return false;
  const Ref atexit(PyImport_ImportModule("atexit"));
  if (!atexit) return false;
  const Ref done(PyObject_CallMethod(atexit.get(), "register", "O", close.get()));
  return static_cast<bool>(done);
}

}  // namespace

std::vector<std::shared_ptr<Store>> StoresOfProcess() {
  std::vector<std::shared_ptr<Store>> stores;
  for (const OpenedStore& known : Opened()) {
    if (known.fork_generation != ForkGeneration()) continue;  // The parent's.
    if (auto store = known.store.lock()) stores.push_back(std::move(store));
  }
  return stores;
}

void LeakInherited(std::shared_ptr<Store> store) {
  static_cast<void>(std::make_unique<std::shared_ptr<Store>>(std::move(store)).release());
}

Call::Call(PyObject* self, const char* method) : method_(method), scope_(method) {
  const State& state = StateOf(self);
  if (state.store == nullptr) {
    RaiseRuntime(
        "%s: the store is %s", method,
        state.was_set_up ? "closed; call setup() again" : "not set up; call setup() first");
  } else if (IsForeign(state)) {
    RaiseRuntime(
        "%s: the store was set up before this process was forked and belongs to the parent; "
        "set up a store of its own in the child",
        method);
  } else {
    store_ = state.store;
  }
}

Call::~Call() {
  if (store_ == nullptr || store_.use_count() > 1) return;
  WithoutGil released;  // Closed during the call: the rest of it goes here.
  store_.reset();
}

bool Call::Raises(const Error& error) const {
  if (error.code == ErrorCode::kInvalidArgument && PyErr_Occurred() == nullptr) {
    RaiseValue("%s: %s", method_, error.context.c_str());
    return true;
  }
  return RaisesForItem(error);
}

bool Call::RaisesForItem(const Error& error) const {
  if (PyErr_Occurred() != nullptr) return true;
  if (error.code == ErrorCode::kInvalidState && store_->closed()) {
    RaiseRuntime("%s: the store was closed during the call", method_);
    return true;
  }
  LogSoftFailure(method_, error);
  return false;
}

std::span<const PyMethodDef> LifecycleMethods() { return kMethods; }

bool AddStoreType(PyObject* module) {
  PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(New)},
      {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
      {Py_tp_methods, AllMethods().data()},
      {Py_tp_doc, const_cast<char*>("A client of the store; MooncakeDistributedStore adds setup.")},
      {0, nullptr},
  };
  PyType_Spec spec{"mooncake._store.NativeStore", sizeof(StoreObject), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  const Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, "NativeStore", type.get()) == 0 &&
         CloseAtExit(module);
}

}  // namespace mooncake::python
