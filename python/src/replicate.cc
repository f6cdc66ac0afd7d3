#include "replicate.h"

#include <algorithm>
#include <string>
#include <vector>

#include "args.h"
#include "errors.h"

namespace mooncake::python {
namespace {

constexpr uint64_t kReplicasMax = 64;
constexpr const char* kAttributes[] = {"replica_num",
                                       "preferred_segment",
                                       "preferred_segments",
                                       "preferred_storage_owner",
                                       "preferred_storage_owners",
                                       "prefer_local",
                                       "with_soft_pin",
                                       "prefer_alloc_in_same_node"};

// Anything with one of the attributes will do, but for a class; the others have their defaults.
// False: an exception is set, perhaps one that an attribute raises.
bool CheckIsConfig(PyObject* object, const Where& where) {
  if (PyType_Check(object)) return WrongType(where, "an instance of ReplicateConfig", object);
  for (const char* name : kAttributes) {
    const Ref value(OrPark([=] { return PyObject_GetAttrString(object, name); }));
    if (value) return true;
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
    PyErr_Clear();
  }
  return WrongType(where, "a ReplicateConfig", object);
}

// A name in a list: there it cannot stand for none.
bool ListedNameFrom(PyObject* object, const Where& where, std::string_view* name) {
  if (!NameFrom(object, where, name)) return false;
  if (!name->empty()) return true;
  RaiseValue("%s is ''; allowed: a name", Describe(where).c_str());
  return false;
}

// The attribute, or an empty reference when there is none. False: an exception is set.
bool Attribute(PyObject* object, const char* name, Ref* value) {
  *value = Ref(OrPark([=] { return PyObject_GetAttrString(object, name); }));
  if (!*value) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
    PyErr_Clear();
  } else if (value->get() == Py_None) {
    *value = Ref();
  }
  return true;
}

bool FlagAttribute(PyObject* config, const Where& where, bool* flag) {
  Ref value;
  if (!Attribute(config, where.name, &value)) return false;
  return !value || BoolFrom(value.get(), where, flag);
}

bool ReplicasFrom(const Where& where, PyObject* config, uint32_t* replicas) {
  Ref value;
  uint64_t count = 1;
  if (!Attribute(config, where.name, &value)) return false;
  if (value && !UnsignedFrom(value.get(), where, &count, 1, kReplicasMax)) return false;
  *replicas = static_cast<uint32_t>(count);
  return true;
}

// The texts of the plural attribute, with the singular one in front unless they name it.
bool Names(const Where& singular, const Where& plural, PyObject* config,
           std::vector<std::string>* names) {
  Ref one;
  Ref many;
  std::string_view text;
  if (!Attribute(config, singular.name, &one) || !Attribute(config, plural.name, &many)) {
    return false;
  }
  if (many) {
    const Ref tuple = TupleFrom(many.get(), plural);
    if (!tuple) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple.get()); ++i) {
      const Where here{plural.method, plural.name, i};
      if (!ListedNameFrom(PyTuple_GET_ITEM(tuple.get(), i), here, &text)) return false;
      names->emplace_back(text);
    }
  }
  text = {};
  if (one && !NameFrom(one.get(), singular, &text)) return false;
  if (!text.empty() && std::find(names->begin(), names->end(), text) == names->end()) {
    names->emplace(names->begin(), text);
  }
  return true;
}

}  // namespace

bool PutSettings::Parse(const char* method, PyObject* config, PyObject* tenant) {
  if (!TextFrom(tenant, {method, "tenant"}, &options.tenant)) return false;
  return config == nullptr || ParseConfig(method, config);
}

bool PutSettings::ParseConfig(const char* method, PyObject* config) {
  if (!CheckIsConfig(config, {method, "config"})) return false;
  ReplicateConfig& to = replicate_;
  if (!ReplicasFrom({method, "replica_num"}, config, &to.replica_num) ||
      !Names({method, "preferred_segment"}, {method, "preferred_segments"}, config,
             &to.preferred_segments) ||
      !Names({method, "preferred_storage_owner"}, {method, "preferred_storage_owners"}, config,
             &to.preferred_storage_owners) ||
      !FlagAttribute(config, {method, "prefer_local"}, &to.prefer_local) ||
      !FlagAttribute(config, {method, "with_soft_pin"}, &to.with_soft_pin) ||
      !FlagAttribute(config, {method, "prefer_alloc_in_same_node"},
                     &to.prefer_alloc_in_same_node)) {
    return false;
  }
  options.replicate = &replicate_;
  return true;
}

}  // namespace mooncake::python
