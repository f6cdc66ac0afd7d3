// Capacity and handover: what a node offers and how it leaves.
#include <array>
#include <optional>
#include <string>

#include "store_object.h"

namespace mooncake::python {
namespace {

using Number = unsigned long long;

constexpr Signature<1> kExpand{"expand_local_memory", {"storage_bytes"}, 1, 1};

// What the store says of an argument, with the method in front as in what is checked here.
Error OfMethod(const char* method, Error error) {
  if (error.code == ErrorCode::kInvalidArgument) {
    error.context = std::string(method) + ": " + error.context;
  }
  return error;
}

PyObject* ExpandLocalMemory(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 1> given;
  uint64_t bytes = 0;
  if (!ParseArgs(kExpand, args, given) ||
      !SizeFrom(given[0], {kExpand.method, "storage_bytes"}, &bytes)) {
    return nullptr;
  }
  const Call call(self, kExpand.method);
  if (!call) return nullptr;
  Result<SegmentInfo> segment = NotFound({});
  {
    WithoutGil released;
    segment = call->ExpandLocalMemory(bytes);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!segment.ok()) return Raise(OfMethod(kExpand.method, segment.error()));
  return Py_BuildValue("{s:s,s:s,s:s,s:K,s:K,s:s,s:K,s:[s]}", "owner", segment->owner.c_str(),
                       "segment_name", segment->segment_name.c_str(), "transport_endpoint",
                       segment->transport_endpoint.c_str(), "capacity_bytes",
                       Number{segment->capacity_bytes}, "used_bytes", Number{segment->used_bytes},
                       "state", segment->state.c_str(), "alignment_bytes",
                       Number{segment->alignment_bytes}, "tags", "dram");
}

// The name of a segment, for the two methods that take one.
bool SegmentName(const Signature<1>& signature, const CallArgs& args, std::string* name) {
  std::array<PyObject*, 1> given;
  std::string_view text;
  if (!ParseArgs(signature, args, given) ||
      !NameFrom(given[0], {signature.method, "segment_name"}, &text)) {
    return false;
  }
  *name = std::string(text);
  return true;
}

constexpr Signature<1> kDrain{"drain_segment", {"segment_name"}, 1, 1, {"name"}};
constexpr Signature<1> kRetire{"retire_segment", {"segment_name"}, 1, 1, {"name"}};

PyObject* DrainSegment(PyObject* self, const CallArgs& args) {
  std::string name;
  if (!SegmentName(kDrain, args, &name)) return nullptr;
  const Call call(self, kDrain.method);
  if (!call) return nullptr;
  Status status;
  {
    WithoutGil released;
    status = call->DrainSegment(name);
  }
  if (!status.ok()) return Raise(status.error());
  return PyErr_Occurred() != nullptr ? nullptr : PyLong_FromLong(0);
}

PyObject* RetireSegment(PyObject* self, const CallArgs& args) {
  std::string name;
  if (!SegmentName(kRetire, args, &name)) return nullptr;
  const Call call(self, kRetire.method);
  if (!call) return nullptr;
  Result<bool> gone = false;
  {
    WithoutGil released;
    gone = call->RetireSegment(name);
  }
  if (!gone.ok()) return Raise(gone.error());
  return PyErr_Occurred() != nullptr ? nullptr : PyBool_FromLong(*gone ? 1 : 0);
}

PyObject* EvacuateOwnedReplicas(PyObject* self, const CallArgs& args) {
  constexpr Signature<0> kNothing{"evacuate_owned_replicas", {}, 0, 0};
  std::array<PyObject*, 0> none;
  if (!ParseArgs(kNothing, args, none)) return nullptr;
  const Call call(self, "evacuate_owned_replicas");
  if (!call) return nullptr;
  Result<uint64_t> moved = uint64_t{0};
  {
    WithoutGil released;
    moved = call->EvacuateOwnedReplicas();
  }
  if (!moved.ok()) return Raise(moved.error());
  return PyErr_Occurred() != nullptr ? nullptr : PyLong_FromUnsignedLongLong(*moved);
}

constexpr Signature<2> kPlanHandoff{"plan_handoff", {"successor_epoch", "deadline_ms"}, 1, 0};

PyObject* PlanHandoff(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 2> given;
  if (!ParseArgs(kPlanHandoff, args, given)) return nullptr;
  std::array<std::optional<uint64_t>, 2> numbers;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == nullptr || given[i] == Py_None) continue;
    uint64_t number = 0;
    const char* name = i == 0 ? "successor_epoch" : "deadline_ms";
    if (!UnsignedFrom(given[i], {kPlanHandoff.method, name}, &number)) return nullptr;
    numbers[i] = number;
  }
  const Call call(self, kPlanHandoff.method);
  if (!call) return nullptr;
  Result<HandoffPlan> plan = NotFound({});
  {
    WithoutGil released;
    plan = call->PlanHandoff(numbers[0], numbers[1]);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!plan.ok()) return Raise(plan.error());
  return Py_BuildValue("{s:s,s:K,s:K,s:K}", "stable_id", plan->stable_id.c_str(), "from_epoch",
                       Number{plan->from_epoch}, "to_epoch", Number{plan->to_epoch}, "deadline_ms",
                       Number{plan->deadline_ms});
}

const PyMethodDef kMethods[] = {
    Method<ExpandLocalMemory>(
        "expand_local_memory",
        "expand_local_memory($self, storage_bytes)\n--\n\n"
        "Offer another segment of that many bytes: an int, or a text such as \"64MB\", at least\n"
        "4096. Returns it as list_segments() does. RuntimeError: the memory cannot be had.\n"
        "Other nodes hear of it at once, or when the metadata service is back."
        "\n\nExample:\n"
        "    >>> segment = store.expand_local_memory(64 << 20)\n"),
    Method<DrainSegment>(
        "drain_segment",
        "drain_segment($self, segment_name)\n--\n\n"
        "Stop placing copies in an own segment and move what is in it, as far as other\n"
        "segments have room. Returns 0. RuntimeError: it is the last active segment."
        "\n\nExample:\n"
        "    >>> store.drain_segment(segment[\"segment_name\"])\n"
        "    0\n"),
    Method<RetireSegment>(
        "retire_segment",
        "retire_segment($self, segment_name)\n--\n\n"
        "Give a drained segment up. True: it is gone. False: something is still in it.\n"
        "RuntimeError: it is not draining."
        "\n\nExample:\n"
        "    >>> store.retire_segment(segment[\"segment_name\"])\n"
        "    True\n"),
    Method<EvacuateOwnedReplicas>(
        "evacuate_owned_replicas",
        "evacuate_owned_replicas($self)\n--\n\n"
        "Enter draining and move every replica of this node to other owners. Returns how many\n"
        "moved. RuntimeError, with what remains: not enough writable placement targets."
        "\n\nExample:\n"
        "    >>> store.evacuate_owned_replicas()\n"
        "    250\n"),
    Method<PlanHandoff>(
        "plan_handoff",
        "plan_handoff($self, successor_epoch=None, *, deadline_ms=None)\n--\n\n"
        "Ask the live standby of the same stable_id to take over. Returns a dict with\n"
        "stable_id, from_epoch, to_epoch and deadline_ms: when it has to be active by, in\n"
        "milliseconds since 1970. It may be given as such, or in milliseconds from now (anything\n"
        "below 10**11); else it is a lease from now, at most 30000. RuntimeError: there is no\n"
        "standby, or the metadata service does not answer. ValueError: the time is over."
        "\n\nExample:\n"
        "    >>> store.plan_handoff()[\"to_epoch\"]\n"
        "    2\n"),
};

}  // namespace

std::span<const PyMethodDef> CapacityMethods() { return kMethods; }

}  // namespace mooncake::python
