#include "bench/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/hash.h"
#include "bench/contents.h"
#include "bench/workload.h"
#include "runtime/xoshiro.h"

namespace mooncake::bench {
namespace {

constexpr uint64_t kRemoveOneIn = 8;
constexpr uint64_t kFullSizeOneIn = 4;
constexpr uint64_t kPassesMin = 2;  // So that every key is overwritten once.

// What may be read for a key. A change whose outcome is unknown leaves two possibilities.
struct Known {
  uint64_t version = 0;         // Of the last put that succeeded; 0: none, or removed since.
  std::vector<uint64_t> maybe;  // Of later puts that failed; they may have happened.
  bool maybe_removed = false;
};

class Checker {
 public:
  Checker(Runtime& runtime, Cluster& cluster, const Options& options, uint64_t run, uint32_t thread)
      : runtime_(runtime),
        options_(options),
        run_(run),
        writer_(cluster.writer(thread)),
        reader_(cluster.reader(thread)),
        chance_(run * 31 + thread),
        value_(std::max<uint64_t>(options.value_bytes, 1)),
        target_(value_.size()) {
    for (uint64_t i = thread; i < options.keys; i += options.concurrency) keys_.push_back(i);
    known_.resize(keys_.size());
  }

  void Run(uint64_t end_ns);
  const Verified& verified() const { return verified_; }

 private:
  uint64_t SeedOf(uint64_t key, uint64_t version) const {
    return base::Mix64(run_ + key * 0x9e3779b97f4a7c15ULL) + version;
  }
  uint64_t SizeOf(uint64_t key, uint64_t version) const;
  void Put(size_t at);
  void Remove(size_t at);
  void Get(size_t at);
  // Whether the bytes are those of that version.
  bool Matches(uint64_t key, uint64_t version, ConstBytes bytes, size_t* first_wrong) const;
  void Judge(uint64_t key, const Known& known, ConstBytes bytes);

  Runtime& runtime_;
  const Options& options_;
  const uint64_t run_;
  Store& writer_;
  Store& reader_;
  runtime::Xoshiro chance_;
  std::vector<std::byte> value_;
  std::vector<std::byte> target_;
  std::vector<uint64_t> keys_;
  std::vector<Known> known_;
  uint64_t next_version_ = 1;
  Verified verified_;
};

void Checker::Run(uint64_t end_ns) {
  for (uint64_t pass = 0; pass < kPassesMin || runtime_.NowNs() < end_ns; ++pass) {
    for (size_t at = 0; at < keys_.size(); ++at) {
      if (stop_signal != 0 || (pass >= kPassesMin && runtime_.NowNs() >= end_ns)) return;
      if (pass > 0 && chance_.Next() % kRemoveOneIn == 0) {
        Remove(at);
      } else {
        Put(at);
      }
      Get(at);
      // And one that was written a while ago.
      Get(chance_.Next() % keys_.size());
    }
    if (keys_.empty()) return;
  }
}

uint64_t Checker::SizeOf(uint64_t key, uint64_t version) const {
  const uint64_t chance = base::Mix64(SeedOf(key, version));
  if (chance % kFullSizeOneIn == 0) return options_.value_bytes;
  return (chance >> 8) % (options_.value_bytes + 1);
}

void Checker::Put(size_t at) {
  const uint64_t key = keys_[at];
  const uint64_t version = next_version_++;
  const MutableBytes value = MutableBytes(value_).first(SizeOf(key, version));
  FillValue(SeedOf(key, version), value);
  ++verified_.ops;
  Known& known = known_[at];
  if (writer_.Put(KeyName(run_, key), value).ok()) {
    known = {version, {}, false};
    return;
  }
  ++verified_.errors;
  known.maybe.push_back(version);
}

void Checker::Remove(size_t at) {
  ++verified_.ops;
  const Status status = writer_.Remove(KeyName(run_, keys_[at]));
  if (status.ok() || status.code() == ErrorCode::kNotFound) {
    known_[at] = Known();
  } else {
    ++verified_.errors;
    known_[at].maybe_removed = true;
  }
}

bool Checker::Matches(uint64_t key, uint64_t version, ConstBytes bytes, size_t* first_wrong) const {
  if (version == 0) return false;
  const uint64_t size = SizeOf(key, version);
  *first_wrong = std::min(FirstWrongByte(SeedOf(key, version), bytes), bytes.size());
  return bytes.size() == size && *first_wrong == size;
}

void Checker::Get(size_t at) {
  const uint64_t key = keys_[at];
  std::fill(target_.begin(), target_.end(), std::byte{0xee});
  const uint64_t start_ns = runtime_.NowNs();
  const Result<uint64_t> size =
      reader_.GetInto(KeyName(run_, key), MutableBytes(target_).first(options_.value_bytes));
  verified_.samples.Add(runtime_.NowNs() - start_ns);
  ++verified_.ops;
  if (size.ok()) {
    Judge(key, known_[at], ConstBytes(target_).first(*size));
  } else if (size.code() != ErrorCode::kNotFound) {
    ++verified_.errors;
  } else if (known_[at].version != 0 && !known_[at].maybe_removed) {
    ++verified_.misses;
  } else {
    ++verified_.verified;
  }
}

void Checker::Judge(uint64_t key, const Known& known, ConstBytes bytes) {
  verified_.bytes += bytes.size();
  size_t wrong_at = 0, ignored = 0;
  bool right = Matches(key, known.version, bytes, &wrong_at);
  for (uint64_t version : known.maybe) right = right || Matches(key, version, bytes, &ignored);
  if (right) {
    ++verified_.verified;
    return;
  }
  ++verified_.wrong;
  if (!verified_.first_wrong.empty()) return;
  const std::string name = KeyName(run_, key);
  verified_.first_wrong =
      known.version == 0
          ? fmt::format("{}: {} bytes where nothing may be", name, bytes.size())
          : fmt::format("{}: {} bytes, expected {} of version {}, first wrong byte {}", name,
                        bytes.size(), SizeOf(key, known.version), known.version, wrong_at);
}

}  // namespace

void Verified::Merge(const Verified& other) {
  samples.Merge(other.samples);
  ops += other.ops;
  verified += other.verified;
  wrong += other.wrong;
  misses += other.misses;
  errors += other.errors;
  bytes += other.bytes;
  if (first_wrong.empty()) first_wrong = other.first_wrong;
}

Result<Verified> RunVerify(Runtime& runtime, Cluster& cluster, const Options& options,
                           uint64_t run) {
  const uint64_t start_ns = runtime.NowNs();
  const uint64_t end_ns = start_ns + static_cast<uint64_t>(options.duration_s * 1e9);
  std::vector<std::unique_ptr<Checker>> checkers;
  std::vector<std::unique_ptr<Thread>> threads;
  for (uint32_t t = 0; t < options.concurrency; ++t) {
    checkers.push_back(std::make_unique<Checker>(runtime, cluster, options, run, t));
    Checker* const checker = checkers.back().get();
    threads.push_back(runtime.Spawn("verify", [checker, end_ns] { checker->Run(end_ns); }));
  }
  threads.clear();
  Verified all;
  for (const auto& checker : checkers) all.Merge(checker->verified());
  all.seconds = static_cast<double>(runtime.NowNs() - start_ns) / 1e9;
  return all;
}

}  // namespace mooncake::bench
