// History: what the clients of a simulated cluster asked and got, and whether that can be true.
//
// Every put has a version of its own and a value of which every byte follows from key and
// version, so a value that was read names the put that it comes from, or nobody's.
//
// Not thread-safe: sim threads run one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mooncake::testing {

// The value of a put; its size follows from the version, too.
std::string PutValueOf(std::string_view key, uint64_t version, uint64_t size_max);
// The version that the value was put under; nullopt: no put of the key has these bytes.
std::optional<uint64_t> VersionIn(std::string_view key, std::string_view value, uint64_t size_max);

enum class OpKind : uint8_t { kPut, kPutIfAbsent, kGet, kExist, kRemove };

enum class OpResult : uint8_t {
  kOpen,     // No answer; or none that anybody heard, as the node was killed.
  kOk,       // Done; read; present.
  kMissing,  // Not found.
  kFailed,   // May still take effect, until the limit.
};

struct Op {
  OpKind kind = OpKind::kGet;
  std::string key;
  std::string node;      // Where it was called.
  uint64_t version = 0;  // Put, or read.
  uint64_t begin = 0;    // Order among all beginnings and ends of the history.
  uint64_t end = ~uint64_t{0};
  uint64_t begin_ms = 0;
  uint64_t end_ms = ~uint64_t{0};
  OpResult result = OpResult::kOpen;
  std::string error;
};

struct HistoryRules {
  // For how long after its beginning an operation that failed may take effect.
  uint64_t limit_ms = 0;
  // How long an operation may take, unless its own node is stopped meanwhile.
  uint64_t took_ms_max = ~uint64_t{0};
  // Whether a key may be lost: owners crash or evict.
  bool losses = false;
  // Whether an old value may come back: an authority was out of reach, and what it knew of
  // overwrites and removes went with it.
  bool revivals = false;
  // Whether operations may fail.
  bool failures = false;
};

struct Disturbance {
  uint64_t at = 0;  // As Op::begin.
  uint64_t at_ms = 0;
  std::string node;
};

class History {
 public:
  // Returns the operation's number, for End.
  size_t Begin(OpKind kind, std::string key, std::string node, uint64_t version, uint64_t now_ms);
  void End(size_t number, OpResult result, uint64_t now_ms, std::string error = {});
  // Of a get; before its End.
  void SetVersion(size_t number, uint64_t version) { ops_[number].version = version; }
  // A node stops without warning. It may take with it what it had answered moments before and
  // had not yet passed on: an overwrite or a remove whose old copy lies at another owner.
  void Disturb(std::string node, uint64_t now_ms) {
    disturbances_.push_back({++clock_, now_ms, std::move(node)});
  }
  // Something to show between the operations: "kill n2".
  void Note(std::string text, uint64_t now_ms);

  // What cannot be true, one line each. `trace` gets the operations on the first key concerned.
  std::vector<std::string> Check(const HistoryRules& rules, std::string* trace) const;
  size_t size() const { return ops_.size(); }
  const std::vector<Op>& ops() const { return ops_; }

 private:
  struct Remark {
    uint64_t at = 0;
    uint64_t at_ms = 0;
    std::string text;
  };
  std::string TraceOf(const std::string& key) const;

  std::vector<Op> ops_;
  std::vector<Remark> remarks_;
  std::vector<Disturbance> disturbances_;
  uint64_t clock_ = 0;
};

}  // namespace mooncake::testing
