// get_into_ranges: pieces of values into pieces of registered buffers.
#include "mooncake/memory_hold.h"
#include "pointers.h"
#include "store_object.h"

namespace mooncake::python {
namespace {

constexpr Signature<7> kSignature{"get_into_ranges",
                                  {"buffer_ptrs", "all_keys", "all_dst_offsets", "all_src_offsets",
                                   "all_sizes", "buffer_sizes", "tenant"},
                                  5,
                                  5};
constexpr const char* kMethod = kSignature.method;
constexpr int64_t kTooSmallCode = static_cast<int64_t>(ErrorCode::kTooSmall);

// One buffer of the call.
struct Buffer {
  uint64_t address = 0;
  uint64_t capacity = UINT64_MAX;
};

// What is asked for about one key of one buffer.
struct KeyFragments {
  size_t buffer = 0;
  std::string_view key;
  std::vector<uint64_t> dst;
  std::vector<uint64_t> src;
  std::vector<uint64_t> sizes;

  size_t count() const { return std::max({dst.size(), src.size(), sizes.size()}); }
  bool even() const { return dst.size() == src.size() && dst.size() == sizes.size(); }
};

struct Ranges {
  std::vector<Ref> kept;  // The tuples that keep the keys alive.
  std::vector<Buffer> buffers;
  std::vector<KeyFragments> wanted;
  std::vector<std::vector<size_t>> counts;  // Fragments of each key of each buffer.
  std::vector<int64_t> numbers;             // One for each fragment, flat.
  std::vector<RangeItem> items;             // Those that may be sent,
  std::vector<size_t> sent;                 // and where their numbers are.
};

// Element `index` of the nested list `outer`, as a tuple. False: an exception is set.
bool Nested(PyObject* outer, const char* name, Py_ssize_t index, Ref* inner) {
  const Where here{kMethod, name, index};
  *inner = TupleFrom(PyTuple_GET_ITEM(outer, index), here);
  return static_cast<bool>(*inner);
}

// Whether a fragment may be sent (1), or its result.
int64_t Check(const Call& call, const Buffer& buffer, uint64_t dst, uint64_t size) {
  if (size == 0) return 0;
  if (dst > buffer.capacity || size > buffer.capacity - dst) return kTooSmallCode;
  const uint64_t address = buffer.address + dst;
  if (address >= buffer.address && MayTouch(*call.store(), address, size, Use::kTarget)) return 1;
  LogRefused(kMethod, address, size, Use::kTarget);
  return kRefusedCode;
}

// Finds the fragments that may be sent; lists of unequal length fail all fragments of their key,
// and nothing else. Under a hold, and when all arguments are read: reading them may run a program
// of the caller's, which may unregister.
void Select(const Call& call, Ranges* ranges) {
  for (const KeyFragments& wanted : ranges->wanted) {
    const Buffer& buffer = ranges->buffers[wanted.buffer];
    for (size_t i = 0; i < wanted.count(); ++i) {
      const int64_t number =
          wanted.even() ? Check(call, buffer, wanted.dst[i], wanted.sizes[i]) : kRefusedCode;
      if (number > 0) {
        ranges->sent.push_back(ranges->numbers.size());
        ranges->items.push_back(
            {wanted.key, wanted.src[i], TargetAt(buffer.address + wanted.dst[i], wanted.sizes[i])});
      }
      ranges->numbers.push_back(number);
    }
  }
}

// All keys of one buffer.
bool AddBuffer(Py_ssize_t index, const std::array<Ref, 4>& lists, Ranges* ranges) {
  constexpr const char* kNames[] = {"all_keys", "all_dst_offsets", "all_src_offsets", "all_sizes"};
  std::array<Ref, 4> rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!Nested(lists[i].get(), kNames[i], index, &rows[i]) ||
        !SameLength(kMethod, kNames[0], rows[0].get(), kNames[i], rows[i].get())) {
      return false;
    }
  }
  std::vector<std::string_view> keys;
  if (!KeysFrom(rows[0].get(), {kMethod, kNames[0]}, &keys)) return false;
  ranges->counts.emplace_back();
  for (size_t k = 0; k < keys.size(); ++k) {
    KeyFragments wanted{static_cast<size_t>(index), keys[k], {}, {}, {}};
    std::vector<uint64_t>* const columns[] = {&wanted.dst, &wanted.src, &wanted.sizes};
    for (size_t i = 0; i < std::size(columns); ++i) {
      Ref fragments;
      if (!Nested(rows[i + 1].get(), kNames[i + 1], static_cast<Py_ssize_t>(k), &fragments) ||
          !UnsignedsFrom(fragments.get(), {kMethod, kNames[i + 1], static_cast<Py_ssize_t>(k)},
                         columns[i])) {
        return false;
      }
    }
    ranges->counts.back().push_back(wanted.count());
    ranges->wanted.push_back(std::move(wanted));
  }
  ranges->kept.push_back(std::move(rows[0]));
  return true;
}

bool BuffersFrom(PyObject* ptrs, PyObject* sizes, Ranges* ranges) {
  std::vector<uint64_t> addresses;
  std::vector<uint64_t> capacities;
  if (!UnsignedsFrom(ptrs, {kMethod, "buffer_ptrs"}, &addresses)) return false;
  if (sizes != nullptr) {
    const Ref tuple = TupleFrom(sizes, {kMethod, "buffer_sizes"});
    if (!tuple || !SameLength(kMethod, "buffer_ptrs", ptrs, "buffer_sizes", tuple.get()) ||
        !UnsignedsFrom(tuple.get(), {kMethod, "buffer_sizes"}, &capacities)) {
      return false;
    }
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    ranges->buffers.push_back({addresses[i], sizes == nullptr ? UINT64_MAX : capacities[i]});
  }
  return true;
}

// The flat numbers as lists of lists of lists.
PyObject* Shaped(const Ranges& ranges) {
  Ref buffers(PyList_New(static_cast<Py_ssize_t>(ranges.counts.size())));
  size_t at = 0;
  for (size_t b = 0; buffers && b < ranges.counts.size(); ++b) {
    const std::vector<size_t>& counts = ranges.counts[b];
    Ref keys(PyList_New(static_cast<Py_ssize_t>(counts.size())));
    for (size_t k = 0; keys && k < counts.size(); ++k) {
      const auto first = ranges.numbers.begin() + static_cast<ptrdiff_t>(at);
      PyObject* fragments = ListFromNumbers({first, first + static_cast<ptrdiff_t>(counts[k])});
      if (fragments == nullptr) return nullptr;
      PyList_SET_ITEM(keys.get(), static_cast<Py_ssize_t>(k), fragments);
      at += counts[k];
    }
    if (!keys) return nullptr;
    PyList_SET_ITEM(buffers.get(), static_cast<Py_ssize_t>(b), keys.Release());
  }
  return buffers.Release();
}

PyObject* GetIntoRanges(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 7> given;
  std::string_view tenant;
  if (!ParseArgs(kSignature, args, given) || !TextFrom(given[6], {kMethod, "tenant"}, &tenant)) {
    return nullptr;
  }
  const Ref ptrs = TupleFrom(given[0], {kMethod, "buffer_ptrs"});
  Ranges ranges;
  if (!ptrs || !BuffersFrom(ptrs.get(), given[5], &ranges)) return nullptr;
  std::array<Ref, 4> lists;
  for (size_t i = 0; i < lists.size(); ++i) {
    const char* name = kSignature.names[i + 1];
    lists[i] = TupleFrom(given[i + 1], {kMethod, name});
    if (!lists[i] || !SameLength(kMethod, "buffer_ptrs", ptrs.get(), name, lists[i].get())) {
      return nullptr;
    }
  }
  const Call call(self, kMethod);
  if (!call) return nullptr;
  for (size_t b = 0; b < ranges.buffers.size(); ++b) {
    if (!AddBuffer(static_cast<Py_ssize_t>(b), lists, &ranges)) return nullptr;
  }
  std::vector<Result<uint64_t>> sizes;
  {
    WithoutGil released;
    const MemoryHold hold(*call.store());
    Select(call, &ranges);
    sizes = call->GetRanges(ranges.items, tenant);
  }
  if (!FillSizes(call, ranges.sent, sizes, &ranges.numbers)) return nullptr;
  return Shaped(ranges);
}

const PyMethodDef kMethods[] = {
    Method<GetIntoRanges>(
        "get_into_ranges",
        "get_into_ranges($self, buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, "
        "all_sizes, *, buffer_sizes=None, tenant=None)\n--\n\n"
        "Read pieces of values into pieces of registered buffers. Element [b][k][f] of the\n"
        "nested lists is about fragment f of key k for buffer b; so is the result: the bytes\n"
        "read, or a negative code as of get_into; -11 also for a fragment that ends behind its\n"
        "buffer or the value. all_sizes, buffer_sizes and all offsets are in bytes; without "
        "buffer_sizes the\n"
        "registered memory is the bound." MC_CALL_ERRORS "\n\nExample:\n"
        "    >>> store.get_into_ranges([ptr], [[\"a\"]], [[[0]]], [[[16]]], [[[32]]])\n"
        "    [[[32]]]\n"),
};

}  // namespace

std::span<const PyMethodDef> RangeMethods() { return kMethods; }

}  // namespace mooncake::python
