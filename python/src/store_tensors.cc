// What the tensor layer in Python needs beyond the public calls: parts of registered memory, which
// Python code must not touch by itself, as another thread may unregister and free it meanwhile.
#include <cstring>
#include <vector>

#include "mooncake/memory_hold.h"
#include "pointers.h"
#include "replicate.h"
#include "store_object.h"
#include "values.h"

namespace mooncake::python {
namespace {

// Where a shard lies in a buffer: `rows` runs of `run` bytes, the first at `start`, each `step`
// after the one before.
struct Cut {
  uint64_t start;
  uint64_t rows;
  uint64_t run;
  uint64_t step;
};

// Up to here every run goes to the store by itself; more and shorter ones are gathered first.
constexpr uint64_t kRunsMax = 64;

// Whether all runs lie within `size` bytes.
bool Fits(const Cut& cut, uint64_t size) {
  if (cut.rows == 0 || cut.run == 0) return true;
  if (cut.start > size || cut.run > size - cut.start) return false;
  const uint64_t room = size - cut.start - cut.run;
  return cut.rows == 1 || (cut.step >= cut.run && cut.rows - 1 <= room / cut.step);
}

// The value's parts. `gathered` holds the bytes when they had to be copied.
std::vector<ConstBytes> PartsOf(ConstBytes head, ConstBytes source, const Cut& cut,
                                std::vector<std::byte>* gathered) {
  std::vector<ConstBytes> parts{head};
  if (cut.run == 0) return parts;
  if (cut.rows <= kRunsMax) {
    for (uint64_t row = 0; row < cut.rows; ++row) {
      parts.push_back(source.subspan(cut.start + row * cut.step, cut.run));
    }
    return parts;
  }
  gathered->resize(cut.rows * cut.run);
  for (uint64_t row = 0; row < cut.rows; ++row) {
    const ConstBytes from = source.subspan(cut.start + row * cut.step, cut.run);
    std::memcpy(gathered->data() + row * cut.run, from.data(), from.size());
  }
  parts.emplace_back(*gathered);
  return parts;
}

constexpr Signature<10> kPutCut{
    "_put_cut_from",
    {"key", "head", "ptr", "size", "start", "rows", "run", "step", "config", "tenant"},
    9,
    8};

PyObject* PutCutFrom(PyObject* self, const CallArgs& args) {
  constexpr const char* kMethod = "_put_cut_from";
  std::array<PyObject*, 10> given;
  std::string_view key;
  HeldBytes head;
  PutSettings settings;
  if (!ParseArgs(kPutCut, args, given) || !KeyFrom(given[0], {kMethod, "key"}, &key) ||
      !head.Hold(given[1], {kMethod, "head"}) || !settings.Parse(kMethod, given[8], given[9])) {
    return nullptr;
  }
  std::array<uint64_t, 6> numbers{};
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!UnsignedFrom(given[i + 2], {kMethod, kPutCut.names[i + 2]}, &numbers[i])) return nullptr;
  }
  const auto [address, size, start, rows, run, step] = numbers;
  const Cut cut{start, rows, run, step};
  if (!Fits(cut, size)) return RaiseValue("%s: the runs do not fit the buffer", kMethod);
  const Call call(self, kMethod);
  if (!call) return nullptr;
  const MemoryHold hold(*call.store());
  if (!MayTouch(*call.store(), address, size, Use::kSource)) {
    LogRefused(kMethod, address, size, Use::kSource);
    call->CountRefused();
    return PyLong_FromLong(-1);
  }
  Status status;
  {
    WithoutGil released;
    std::vector<std::byte> gathered;
    const auto parts = PartsOf(head.bytes(), SourceAt(address, size), cut, &gathered);
    const PutItem item{key, parts};
    status = std::move(call->PutMany({&item, 1}, settings.options).front());
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (status.ok()) return PyLong_FromLong(0);
  return call.Raises(status.error()) ? nullptr : PyLong_FromLong(-1);
}

constexpr Signature<4> kCopyInto{"_copy_into", {"ptr", "size", "offset", "data"}, 4, 4};

PyObject* CopyInto(PyObject* self, const CallArgs& args) {
  constexpr const char* kMethod = "_copy_into";
  std::array<PyObject*, 4> given;
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t offset = 0;
  HeldBytes data;
  if (!ParseArgs(kCopyInto, args, given) || !UnsignedFrom(given[0], {kMethod, "ptr"}, &address) ||
      !UnsignedFrom(given[1], {kMethod, "size"}, &size) ||
      !UnsignedFrom(given[2], {kMethod, "offset"}, &offset) ||
      !data.Hold(given[3], {kMethod, "data"})) {
    return nullptr;
  }
  if (offset > size || data.bytes().size() > size - offset) {
    return RaiseValue("%s: the data does not fit the buffer", kMethod);
  }
  const Call call(self, kMethod);
  if (!call) return nullptr;
  const MemoryHold hold(*call.store());
  if (!MayTouch(*call.store(), address, size, Use::kTarget)) {
    LogRefused(kMethod, address, size, Use::kTarget);
    call->CountRefused();
    return PyLong_FromLong(kRefusedCode);
  }
  {
    WithoutGil released;
    const MutableBytes target = TargetAt(address, size).subspan(offset);
    if (!data.bytes().empty()) {
      std::memcpy(target.data(), data.bytes().data(), data.bytes().size());
    }
  }
  return PyErr_Occurred() != nullptr ? nullptr : PyLong_FromLong(0);
}

constexpr Signature<2> kCopyOut{"_copy_out", {"ptr", "size"}, 2, 2};

PyObject* CopyOut(PyObject* self, const CallArgs& args) {
  constexpr const char* kMethod = "_copy_out";
  std::array<PyObject*, 2> given;
  uint64_t address = 0;
  uint64_t size = 0;
  if (!ParseArgs(kCopyOut, args, given) || !UnsignedFrom(given[0], {kMethod, "ptr"}, &address) ||
      !UnsignedFrom(given[1], {kMethod, "size"}, &size)) {
    return nullptr;
  }
  const Call call(self, kMethod);
  if (!call) return nullptr;
  const MemoryHold hold(*call.store());
  if (!MayTouch(*call.store(), address, size, Use::kSource)) {
    LogRefused(kMethod, address, size, Use::kSource);
    call->CountRefused();
    Py_RETURN_NONE;
  }
  const ConstBytes source = SourceAt(address, size);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(source.data()),
                                   static_cast<Py_ssize_t>(source.size()));
}

const PyMethodDef kMethods[] = {
    Method<PutCutFrom>("_put_cut_from",
                       "_put_cut_from($self, key, head, ptr, size, start, rows, run, step, "
                       "config=None, *, tenant=None)\n--\n\n"
                       "put() of `head` and of runs of registered memory: `rows` runs of `run` "
                       "bytes, the\nfirst at ptr + start, each `step` after the one before. All "
                       "of the `size` bytes at\n`ptr` have to be registered. Returns 0 or -1."),
    Method<CopyInto>("_copy_into",
                     "_copy_into($self, ptr, size, offset, data)\n--\n\n"
                     "Copy bytes to ptr + offset. All of the `size` bytes at `ptr` have to be\n"
                     "registered, else -2 is returned; 0 when the bytes were copied."),
    Method<CopyOut>("_copy_out",
                    "_copy_out($self, ptr, size)\n--\n\n"
                    "The bytes at `ptr`; None when they are not all registered."),
};

}  // namespace

std::span<const PyMethodDef> TensorMethods() { return kMethods; }

}  // namespace mooncake::python
