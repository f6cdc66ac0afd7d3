#include "bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/hash.h"
#include "bench/contents.h"
#include "runtime/mapped_memory.h"
#include "runtime/xoshiro.h"

namespace mooncake::bench {

std::atomic<int> stop_signal{0};

namespace {

constexpr uint64_t kStartWaitMs = 60'000;
constexpr uint64_t kPreloadBatchBytes = 16 << 20;

// What all threads of a run share.
struct Shared {
  Runtime& runtime;
  Cluster& cluster;
  const Options& options;
  const uint64_t run;
  std::unique_ptr<Event> start;
  std::atomic<uint32_t> ready{0};
  std::atomic<uint64_t> claimed{0};
  uint64_t end_ns = 0;  // Set before `start`; 0: by iterations.
};

// One thread: its memory, its keys, its counts.
class Worker {
 public:
  Worker(Shared& shared, uint32_t thread)
      : shared_(shared),
        options_(shared.options),
        writer_(shared.cluster.writer(thread)),
        reader_(shared.cluster.reader(thread)),
        chance_(shared.run + thread) {}

  Status Open();
  void Run();
  const Outcome& outcome() const { return outcome_; }

 private:
  bool Claim();
  void CallOnce(bool counted);
  void Choose(uint32_t count);
  uint64_t Write();
  uint64_t Read();
  uint64_t ReadAllocated();
  uint64_t ReadInto();
  uint64_t Exist();
  MutableBytes Slot(size_t item) const {
    return memory_.bytes().subspan(item * options_.value_bytes, options_.value_bytes);
  }

  Shared& shared_;
  const Options& options_;
  Store& writer_;
  Store& reader_;
  runtime::Xoshiro chance_;
  MappedMemory memory_;
  Outcome outcome_;
  std::vector<std::string> names_;
  std::vector<std::string_view> keys_;
};

Status Worker::Open() {
  const uint64_t items = std::max(options_.WriteBatch(), options_.ReadBatch());
  MC_TRY(memory_, MappedMemory::Map(std::max<uint64_t>(items * options_.value_bytes, 1), 0));
  for (size_t item = 0; item < items; ++item) FillValue(item, Slot(item));
  const MutableBytes all = memory_.bytes();
  MC_RETURN_IF_ERROR(writer_.RegisterBuffer(all.data(), all.size()));
  return reader_.RegisterBuffer(all.data(), all.size());
}

bool Worker::Claim() {
  if (stop_signal.load(std::memory_order_relaxed) != 0) return false;
  if (shared_.end_ns != 0) return shared_.runtime.NowNs() < shared_.end_ns;
  return shared_.claimed.fetch_add(1, std::memory_order_relaxed) < options_.iterations;
}

void Worker::Run() {
  for (uint64_t call = 0; call < options_.warmup && stop_signal == 0; ++call) CallOnce(false);
  ++shared_.ready;
  if (!shared_.start->WaitUntil(shared_.runtime.NowMs() + kStartWaitMs)) return;
  while (Claim()) CallOnce(true);
}

// Different keys, as a batch that repeats one would be answered from the caches.
void Worker::Choose(uint32_t count) {
  names_.clear();
  keys_.clear();
  const uint64_t first = chance_.Next() % options_.keys;
  const uint64_t step = std::max<uint64_t>(options_.keys / count, 1);
  for (uint32_t i = 0; i < count; ++i) {
    names_.push_back(KeyName(shared_.run, (first + i * step) % options_.keys));
  }
  keys_.assign(names_.begin(), names_.end());
}

void Worker::CallOnce(bool counted) {
  const bool read = options_.mode == "get" ||
                    (options_.mode == "mixed" && chance_.Next() % 100 < options_.read_percent);
  const uint32_t count = read ? options_.ReadBatch() : options_.WriteBatch();
  Choose(count);
  const uint64_t start_ns = shared_.runtime.NowNs();
  const uint64_t good = read ? Read() : Write();
  const uint64_t took_ns = shared_.runtime.NowNs() - start_ns;
  if (!counted) return;
  outcome_.samples.Add(took_ns);
  outcome_.ops += 1;
  outcome_.items += count;
  outcome_.errors += count - good;
  const bool moves = !read || !options_.read_interface.ends_with("is_exist");
  if (moves) outcome_.bytes += good * options_.value_bytes;
}

// Always overwrites: an insert of a key that is there would move nothing.
uint64_t Worker::Write() {
  std::vector<ConstBytes> values(keys_.size());
  std::vector<PutItem> items(keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) {
    values[i] = Slot(i);
    items[i] = {keys_[i], {&values[i], 1}};
  }
  uint64_t good = 0;
  for (const Status& status : writer_.PutMany(items, {})) good += status.ok();
  return good;
}

uint64_t Worker::Read() {
  if (options_.read_interface.ends_with("is_exist")) return Exist();
  return options_.read_interface.ends_with("_into") ? ReadInto() : ReadAllocated();
}

uint64_t Worker::Exist() {
  uint64_t good = 0;
  for (const auto& answer : reader_.ExistMany(keys_, {})) {
    good += answer.ok() && *answer == Existence::kPresent;
  }
  return good;
}

uint64_t Worker::ReadInto() {
  std::vector<MutableBytes> targets(keys_.size());
  std::vector<GetItem> items(keys_.size());
  for (size_t i = 0; i < keys_.size(); ++i) {
    targets[i] = Slot(i);
    items[i] = {keys_[i], {&targets[i], 1}};
  }
  uint64_t good = 0;
  for (const auto& size : reader_.GetMany(items, {})) {
    good += size.ok() && *size == options_.value_bytes;
  }
  return good;
}

uint64_t Worker::ReadAllocated() {
  std::vector<std::string> values(keys_.size());
  const AllocateTarget allocate = [&](size_t item, uint64_t size) -> std::optional<MutableBytes> {
    values[item].resize(size);
    return MutableBytesAt(values[item].data(), size);
  };
  uint64_t good = 0;
  for (const auto& size : reader_.GetManyAllocated(keys_, {}, allocate)) {
    good += size.ok() && *size == options_.value_bytes;
  }
  return good;
}

}  // namespace

void Outcome::Merge(const Outcome& other) {
  samples.Merge(other.samples);
  ops += other.ops;
  items += other.items;
  errors += other.errors;
  bytes += other.bytes;
}

Result<uint64_t> Preload(Runtime&, Cluster& cluster, const Options& options, uint64_t run) {
  const uint64_t each = std::max<uint64_t>((options.value_bytes + 127) / 64 * 64, 64);
  // At most 70 % full, so that nothing is evicted while reads are measured.
  const uint64_t fitting = cluster.capacity_bytes() / 10 * 7 / each;
  const uint64_t keys = std::min(options.keys, fitting);
  if (keys == 0) {
    return NoSpace(fmt::format("--value-size {} does not fit into {} bytes of storage",
                               options.value_bytes, cluster.capacity_bytes()));
  }
  std::vector<std::byte> value(options.value_bytes);
  FillValue(run, value);
  const ConstBytes part = value;
  const uint64_t batch = std::clamp<uint64_t>(kPreloadBatchBytes / each, 1, 1024);
  for (uint64_t first = 0; first < keys && stop_signal == 0; first += batch) {
    std::vector<std::string> names;
    for (uint64_t i = first; i < std::min(first + batch, keys); ++i) {
      names.push_back(KeyName(run, i));
    }
    std::vector<PutItem> items;
    items.reserve(names.size());
    for (const std::string& name : names) items.push_back({name, {&part, 1}});
    for (Status& status : cluster.writer(0).PutMany(items, {}))
      MC_RETURN_IF_ERROR(std::move(status));
  }
  return keys;
}

Result<Outcome> RunWorkload(Runtime& runtime, Cluster& cluster, const Options& options,
                            uint64_t run) {
  Shared shared = {runtime, cluster, options, run, runtime.NewEvent()};
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint32_t t = 0; t < options.concurrency; ++t) {
    workers.push_back(std::make_unique<Worker>(shared, t));
    MC_RETURN_IF_ERROR(workers.back()->Open());
  }
  std::vector<std::unique_ptr<Thread>> threads;
  threads.reserve(workers.size());
  for (auto& worker : workers) {
    threads.push_back(runtime.Spawn("bench", [w = worker.get()] { w->Run(); }));
  }
  while (shared.ready < options.concurrency) runtime.SleepMs(1);
  const uint64_t start_ns = runtime.NowNs();
  const auto duration_ns = static_cast<uint64_t>(options.duration_s * 1e9);
  if (duration_ns != 0) shared.end_ns = start_ns + duration_ns;
  shared.start->Set();
  threads.clear();
  Outcome outcome;
  outcome.seconds = static_cast<double>(runtime.NowNs() - start_ns) / 1e9;
  for (const auto& worker : workers) outcome.Merge(worker->outcome());
  return outcome;
}

}  // namespace mooncake::bench
