// Values gathered from, and scattered into, many registered ranges each.
#include <deque>

#include "mooncake/memory_hold.h"
#include "pointers.h"
#include "replicate.h"
#include "store_object.h"
#include "values.h"

namespace mooncake::python {
namespace {

// The ranges of one item: [first, first + count) of Batch::ptrs and sizes.
struct Row {
  size_t first = 0;
  size_t count = 0;
  bool is_held = false;  // They are bytes objects, which need no registration.
};

struct Batch {
  Ref keys_tuple;
  std::vector<std::string_view> keys;
  std::vector<Row> rows;
  std::vector<uint64_t> ptrs;
  std::vector<uint64_t> sizes;
  std::deque<HeldBytes> held;  // The bytes objects of rows that are held.
};

bool AppendNumbers(PyObject* tuple, const Where& where, std::vector<uint64_t>* numbers) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    const Where here{where.method, where.name, where.index, i};
    uint64_t number = 0;
    if (!UnsignedFrom(PyTuple_GET_ITEM(tuple, i), here, &number)) return false;
    numbers->push_back(number);
  }
  return true;
}

// One row of addresses and one of sizes.
bool AppendRow(const char* method, Py_ssize_t index, PyObject* ptrs, PyObject* sizes,
               Batch* batch) {
  const Where ptrs_here{method, "ptrs", index};
  const Where sizes_here{method, "sizes", index};
  const Ref ptrs_row = TupleFrom(ptrs, ptrs_here);
  const Ref sizes_row = ptrs_row ? TupleFrom(sizes, sizes_here) : Ref();
  if (!sizes_row) return false;
  const std::string row = "[" + std::to_string(index) + "]";
  if (!SameLength(method, ("ptrs" + row).c_str(), ptrs_row.get(), ("sizes" + row).c_str(),
                  sizes_row.get())) {
    return false;
  }
  batch->rows.push_back(
      {batch->ptrs.size(), static_cast<size_t>(PyTuple_GET_SIZE(ptrs_row.get())), false});
  return AppendNumbers(ptrs_row.get(), ptrs_here, &batch->ptrs) &&
         AppendNumbers(sizes_row.get(), sizes_here, &batch->sizes);
}

// A row of (ptr, size) pairs, or of bytes objects.
bool AppendPieces(const char* method, Py_ssize_t index, PyObject* pieces, Batch* batch) {
  const Where where{method, "items", index};
  const Ref tuple = TupleFrom(pieces, where);
  if (!tuple) return false;
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple.get());
  const bool pairs = count > 0 && (PyTuple_Check(PyTuple_GET_ITEM(tuple.get(), 0)) ||
                                   PyList_Check(PyTuple_GET_ITEM(tuple.get(), 0)));
  if (pairs) {
    Ref columns[2];
    return ColumnsFrom(tuple.get(), where, 2, columns) &&
           AppendRow(method, index, columns[0].get(), columns[1].get(), batch);
  }
  batch->rows.push_back({batch->ptrs.size(), static_cast<size_t>(count), true});
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Where here{method, "items", index, i};
    if (!batch->held.emplace_back().Hold(PyTuple_GET_ITEM(tuple.get(), i), here)) return false;
    const ConstBytes bytes = batch->held.back().bytes();
    batch->ptrs.push_back(reinterpret_cast<uint64_t>(bytes.data()));
    batch->sizes.push_back(bytes.size());
  }
  return true;
}

// [(key, [bytes, ...])], [(key, [(ptr, size), ...])] or [(key, ptrs, sizes)].
bool ItemsFrom(const char* method, PyObject* items, Batch* batch) {
  const Where where{method, "items"};
  const Ref tuple = TupleFrom(items, where);
  if (!tuple) return false;
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple.get());
  batch->keys_tuple = Ref(PyTuple_New(count));
  if (!batch->keys_tuple) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Where here{method, "items", i};
    const Ref item = TupleFrom(PyTuple_GET_ITEM(tuple.get(), i), here);
    if (!item) return false;
    const Py_ssize_t width = PyTuple_GET_SIZE(item.get());
    if (width != 2 && width != 3) {
      RaiseValue("%s must have 2 or 3 elements, got %zd", Describe(here).c_str(), width);
      return false;
    }
    PyObject* first = PyTuple_GET_ITEM(item.get(), 1);
    const bool taken = width == 2
                           ? AppendPieces(method, i, first, batch)
                           : AppendRow(method, i, first, PyTuple_GET_ITEM(item.get(), 2), batch);
    if (!taken) return false;
    PyTuple_SET_ITEM(batch->keys_tuple.get(), i, Py_NewRef(PyTuple_GET_ITEM(item.get(), 0)));
  }
  return KeysFrom(batch->keys_tuple.get(), where, &batch->keys);
}

bool ListsFrom(const char* method, PyObject* keys, PyObject* ptrs, PyObject* sizes, Batch* batch) {
  RawBatch lists;
  if (!RawBatchFrom(method, keys, ptrs, sizes, &lists)) return false;
  batch->keys_tuple = std::move(lists.keys);
  if (!KeysFrom(batch->keys_tuple.get(), {method, "keys"}, &batch->keys)) return false;
  const Py_ssize_t count = PyTuple_GET_SIZE(batch->keys_tuple.get());
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!AppendRow(method, i, PyTuple_GET_ITEM(lists.ptrs.get(), i),
                   PyTuple_GET_ITEM(lists.sizes.get(), i), batch)) {
      return false;
    }
  }
  return true;
}

bool BatchFrom(const char* method, PyObject* keys, PyObject* ptrs, PyObject* sizes, Batch* batch) {
  if (ptrs == nullptr && sizes == nullptr) return ItemsFrom(method, keys, batch);
  return ListsFrom(method, keys, ptrs, sizes, batch);
}

// The positions of the items whose memory may be touched. Without the GIL.
std::vector<size_t> Select(const Call& call, Use use, const Batch& batch) {
  const auto may_touch = [&](const Row& row) {
    for (size_t piece = row.first; piece < row.first + row.count; ++piece) {
      if (MayTouch(*call.store(), batch.ptrs[piece], batch.sizes[piece], use)) continue;
      LogRefused(call.method(), batch.ptrs[piece], batch.sizes[piece], use);
      return false;
    }
    return true;
  };
  std::vector<size_t> sent;
  sent.reserve(batch.rows.size());
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    if (batch.rows[i].is_held || may_touch(batch.rows[i])) sent.push_back(i);
  }
  return sent;
}

constexpr Signature<5> kPut{"batch_put_from_multi_buffers",
                            {"keys", "ptrs", "sizes", "config", "tenant"},
                            4,
                            1,
                            {nullptr, "all_ptrs", "all_sizes"}};

PyObject* BatchPutFrom(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 5> given;
  PutSettings settings;
  Batch batch;
  if (!ParseArgs(kPut, args, given) || !settings.Parse(kPut.method, given[3], given[4]) ||
      !BatchFrom(kPut.method, given[0], given[1], given[2], &batch)) {
    return nullptr;
  }
  settings.options.if_absent = true;
  const Call call(self, kPut.method);
  if (!call) return nullptr;
  std::vector<int64_t> numbers(batch.keys.size(), kRefusedCode);
  std::vector<size_t> sent;
  std::vector<Status> statuses;
  {
    WithoutGil released;
    const MemoryHold hold(*call.store());
    sent = Select(call, Use::kSource, batch);
    std::vector<ConstBytes> pieces(batch.ptrs.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      pieces[i] = SourceAt(batch.ptrs[i], batch.sizes[i]);
    }
    std::vector<PutItem> items(sent.size());
    for (size_t i = 0; i < sent.size(); ++i) {
      const Row& row = batch.rows[sent[i]];
      items[i] = {batch.keys[sent[i]], {pieces.data() + row.first, row.count}};
    }
    statuses = call->PutMany(items, settings.options);
  }
  if (!FillStatuses(call, sent, statuses, &numbers)) return nullptr;
  return ListFromNumbers(numbers);
}

constexpr Signature<5> kGet{"batch_get_into_multi_buffers",
                            {"keys", "ptrs", "sizes", "prefer_alloc_in_same_node", "tenant"},
                            4,
                            1,
                            {nullptr, "all_ptrs", "all_sizes"}};

PyObject* BatchGetInto(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 5> given;
  std::string_view tenant;
  Batch batch;
  bool same_node = false;  // About placement, so a read has no use for it.
  if (!ParseArgs(kGet, args, given) || !FlagFrom(given[3], &same_node) ||
      !TextFrom(given[4], {kGet.method, "tenant"}, &tenant) ||
      !BatchFrom(kGet.method, given[0], given[1], given[2], &batch)) {
    return nullptr;
  }
  if (!batch.held.empty()) return RaiseType("%s: items must hold (ptr, size)", kGet.method);
  const Call call(self, kGet.method);
  if (!call) return nullptr;
  std::vector<int64_t> numbers(batch.keys.size(), kRefusedCode);
  std::vector<size_t> sent;
  std::vector<Result<uint64_t>> sizes;
  {
    WithoutGil released;
    const MemoryHold hold(*call.store());
    sent = Select(call, Use::kTarget, batch);
    std::vector<MutableBytes> pieces(batch.ptrs.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      pieces[i] = TargetAt(batch.ptrs[i], batch.sizes[i]);
    }
    std::vector<GetItem> items(sent.size());
    for (size_t i = 0; i < sent.size(); ++i) {
      const Row& row = batch.rows[sent[i]];
      items[i] = {batch.keys[sent[i]], {pieces.data() + row.first, row.count}};
    }
    sizes = call->GetMany(items, tenant);
  }
  if (!FillSizes(call, sent, sizes, &numbers)) return nullptr;
  return ListFromNumbers(numbers);
}

const PyMethodDef kMethods[] = {
    Method<BatchPutFrom>(
        "batch_put_from_multi_buffers",
        "batch_put_from_multi_buffers($self, keys, ptrs=None, sizes=None, config=None, *, "
        "all_ptrs=None, all_sizes=None, tenant=None)\n--\n\n"
        "Store values that are gathered from many registered ranges each, unless their keys\n"
        "have one: keys and two lists of lists, or one list of (key, ptrs, sizes),\n"
        "(key, [(ptr, size), ...]) or (key, [bytes, ...]). all_ptrs= and all_sizes= are other\n"
        "names of ptrs= and sizes=.\n"
        "Returns 0 or a negative code each." MC_CALL_ERRORS "\n\nExample:\n"
        "    >>> store.batch_put_from_multi_buffers([\"a\"], [[k_ptr, v_ptr]], [[64, 64]])\n"
        "    [0]\n"),
    Method<BatchGetInto>(
        "batch_get_into_multi_buffers",
        "batch_get_into_multi_buffers($self, keys, ptrs=None, sizes=None, "
        "prefer_alloc_in_same_node=False, *, all_ptrs=None, all_sizes=None, "
        "tenant=None)\n--\n\n"
        "Read values into many registered ranges each, filled in order: keys and two lists of\n"
        "lists, or one list of (key, ptrs, sizes) or (key, [(ptr, size), ...]). all_ptrs= and\n"
        "all_sizes= are other names of ptrs= and sizes=.\n"
        "Returns the size in bytes or a negative code each, as get_into does." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> store.batch_get_into_multi_buffers([\"a\"], [[k_ptr, v_ptr]], [[64, 64]])\n"
        "    [128]\n"),
};

}  // namespace

std::span<const PyMethodDef> MultiBufferMethods() { return kMethods; }

}  // namespace mooncake::python
