#include "support/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/hash.h"

namespace mooncake::testing {

namespace {

constexpr uint64_t kNever = ~uint64_t{0};
constexpr size_t kProblemsMax = 20;
// Notices leave 2 ms after the answer, and arrive after the latency of the network.
constexpr uint64_t kNoticeMs = 20;

bool IsPut(const Op& op) { return op.kind == OpKind::kPut || op.kind == OpKind::kPutIfAbsent; }

const char* NameOf(OpKind kind) {
  switch (kind) {
    case OpKind::kPut: return "put";
    case OpKind::kPutIfAbsent: return "put-if-absent";
    case OpKind::kGet: return "get";
    case OpKind::kExist: return "exist";
    case OpKind::kRemove: return "remove";
  }
  return "?";
}

const char* NameOf(OpResult result) {
  switch (result) {
    case OpResult::kOpen: return "open";
    case OpResult::kOk: return "ok";
    case OpResult::kMissing: return "missing";
    case OpResult::kFailed: return "failed";
  }
  return "?";
}

std::string Describe(const Op& op) {
  return fmt::format("{:>8}..{:<8} ms  {} {} {} v{:x}: {} {}", op.begin_ms,
                     op.end_ms == kNever ? 0 : op.end_ms, op.node, NameOf(op.kind), op.key,
                     op.version, NameOf(op.result), op.error);
}

// The operations on one key, and what follows from each about the others.
class KeyHistory {
 public:
  KeyHistory(const HistoryRules& rules, const std::vector<Disturbance>& disturbances,
             std::vector<std::string>* problems)
      : rules_(rules), disturbances_(disturbances), problems_(*problems) {}

  void Add(const Op& op) { ops_.push_back(&op); }

  void Check() {
    FindCertain();
    for (const Op* op : ops_) {
      if (problems_.size() >= kProblemsMax) return;
      if (op->result == OpResult::kFailed && !rules_.failures) Report("failed", *op, nullptr);
      if (TookTooLong(*op)) Report("took too long", *op, nullptr);
      if (op->result == OpResult::kOk && op->kind == OpKind::kGet) CheckRead(*op);
      if (op->result == OpResult::kOk && op->kind == OpKind::kExist) CheckPresent(*op);
      if (op->result == OpResult::kMissing && !rules_.losses) CheckMissing(*op);
      if (op->kind == OpKind::kPutIfAbsent && seen_.contains(op->version) && !rules_.losses) {
        CheckTookEffect(*op);
      }
    }
  }

 private:
  // From `at` on it is certain that the operation has taken effect (a remove, a miss: that the
  // key was absent for a moment).
  struct Certain {
    const Op* op;
    uint64_t at;
  };

  void FindCertain() {
    for (const Op* op : ops_) {
      if (IsPut(*op)) puts_[op->version] = op;
      if (op->kind != OpKind::kGet || op->result != OpResult::kOk) continue;
      uint64_t& first = seen_.try_emplace(op->version, kNever).first->second;
      first = std::min(first, op->end);
    }
    for (const Op* op : ops_) {
      uint64_t at = kNever;
      if (op->kind == OpKind::kPut && op->result == OpResult::kOk) at = op->end;
      if (op->kind == OpKind::kRemove && op->result == OpResult::kOk) at = op->end;
      // Where owners may be out of reach, what they have may be missed for a while.
      if (op->result == OpResult::kMissing && !rules_.losses) at = op->end;
      if (IsPut(*op) && seen_.contains(op->version)) at = std::min(at, seen_[op->version]);
      if (at != kNever) certain_.push_back({op, at});
    }
  }

  // Whether `op` cannot take effect any more once `later` begins.
  bool OverBefore(const Op& op, const Op& later) const {
    if (op.result == OpResult::kOk || op.result == OpResult::kMissing) return op.end < later.begin;
    return op.begin_ms + rules_.limit_ms < later.begin_ms;
  }

  bool Disturbed(const Op& op) const {
    return std::any_of(disturbances_.begin(), disturbances_.end(), [&](const Disturbance& stop) {
      return op.begin < stop.at && (op.end_ms == kNever || op.end_ms + kNoticeMs >= stop.at_ms);
    });
  }

  bool TookTooLong(const Op& op) const {
    if (op.result == OpResult::kOpen || op.end_ms - op.begin_ms <= rules_.took_ms_max) return false;
    return std::none_of(disturbances_.begin(), disturbances_.end(), [&](const Disturbance& stop) {
      return stop.node == op.node && op.begin < stop.at && op.end_ms >= stop.at_ms;
    });
  }

  void CheckRead(const Op& read) {
    const auto found = puts_.find(read.version);
    if (found == puts_.end() || found->second->begin > read.end) {
      return Report("read a value that nobody had put", read, nullptr);
    }
    if (rules_.revivals) return;
    const Op& put = *found->second;
    for (const Certain& certain : certain_) {
      if (certain.op == &put || certain.at >= read.begin || Disturbed(*certain.op)) continue;
      if (certain.op->kind == OpKind::kGet && certain.op->result != OpResult::kMissing) continue;
      if (OverBefore(put, *certain.op)) return Report("read an old value", read, certain.op);
    }
  }

  void CheckPresent(const Op& read) {
    if (rules_.revivals) return;
    for (const Certain& certain : certain_) {
      if (IsPut(*certain.op) || certain.at >= read.begin || Disturbed(*certain.op)) continue;
      const bool put_since = std::any_of(puts_.begin(), puts_.end(), [&](const auto& entry) {
        return entry.second->begin < read.end && !OverBefore(*entry.second, *certain.op);
      });
      if (!put_since) return Report("saw a key that was gone", read, certain.op);
    }
  }

  void CheckMissing(const Op& read) {
    if (const Op* put = NeverAbsent(read)) Report("missed a value", read, put);
  }

  // Somebody read what it put, so the key was absent for a moment.
  void CheckTookEffect(const Op& put) {
    if (const Op* other = NeverAbsent(put)) Report("put over a value that was there", put, other);
  }

  // The put because of which the key was there all the time that `op` took; nullptr: none.
  const Op* NeverAbsent(const Op& op) const {
    for (const Certain& certain : certain_) {
      if (!IsPut(*certain.op) || certain.op == &op || certain.at >= op.begin) continue;
      const bool removed_since = std::any_of(ops_.begin(), ops_.end(), [&](const Op* other) {
        return other->kind == OpKind::kRemove && other != &op && other->begin < op.end &&
               !OverBefore(*other, *certain.op);
      });
      if (!removed_since) return certain.op;
    }
    return nullptr;
  }

  void Report(const char* what, const Op& op, const Op* because) {
    std::string text = fmt::format("{}: {}", what, Describe(op));
    if (because != nullptr) text += "\n    because of  " + Describe(*because);
    problems_.push_back(std::move(text));
  }

  const HistoryRules& rules_;
  const std::vector<Disturbance>& disturbances_;
  std::vector<std::string>& problems_;
  std::vector<const Op*> ops_;
  std::map<uint64_t, const Op*> puts_;  // By version.
  std::map<uint64_t, uint64_t> seen_;   // The first end of a read of each version.
  std::vector<Certain> certain_;
};

uint64_t SizeOf(uint64_t version, uint64_t size_max) {
  return 8 + base::Mix64(version) % (size_max - 7);
}

}  // namespace

std::string PutValueOf(std::string_view key, uint64_t version, uint64_t size_max) {
  std::string value(SizeOf(version, size_max), '\0');
  std::memcpy(value.data(), &version, 8);
  const uint64_t origin = base::Mix64(base::Hash64(key) ^ version);
  for (size_t at = 8; at < value.size(); at += 8) {
    const uint64_t word = base::Mix64(origin + at);
    std::memcpy(value.data() + at, &word, std::min<size_t>(8, value.size() - at));
  }
  return value;
}

std::optional<uint64_t> VersionIn(std::string_view key, std::string_view value, uint64_t size_max) {
  if (value.size() < 8) return std::nullopt;
  uint64_t version = 0;
  std::memcpy(&version, value.data(), 8);
  if (PutValueOf(key, version, size_max) != value) return std::nullopt;
  return version;
}

size_t History::Begin(OpKind kind, std::string key, std::string node, uint64_t version,
                      uint64_t now_ms) {
  Op& op = ops_.emplace_back();
  op.kind = kind;
  op.key = std::move(key);
  op.node = std::move(node);
  op.version = version;
  op.begin = ++clock_;
  op.begin_ms = now_ms;
  return ops_.size() - 1;
}

void History::End(size_t number, OpResult result, uint64_t now_ms, std::string error) {
  Op& op = ops_[number];
  op.result = result;
  op.error = std::move(error);
  if (result == OpResult::kOpen) return;
  op.end = ++clock_;
  op.end_ms = now_ms;
}

void History::Note(std::string text, uint64_t now_ms) {
  remarks_.push_back({++clock_, now_ms, std::move(text)});
}

std::string History::TraceOf(const std::string& key) const {
  std::vector<std::pair<uint64_t, std::string>> lines;
  for (const Op& op : ops_) {
    if (op.key == key) lines.emplace_back(op.begin, Describe(op));
  }
  for (const Remark& remark : remarks_) {
    lines.emplace_back(remark.at, fmt::format("{:>8} ms  -- {}", remark.at_ms, remark.text));
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const auto& [at, line] : lines) text += line + "\n";
  return text;
}

std::vector<std::string> History::Check(const HistoryRules& rules, std::string* trace) const {
  std::vector<std::string> problems;
  std::map<std::string, KeyHistory> keys;
  for (const Op& op : ops_) {
    keys.try_emplace(op.key, rules, disturbances_, &problems).first->second.Add(op);
  }
  for (auto& [key, history] : keys) {
    history.Check();
    if (!problems.empty() && trace->empty()) *trace = TraceOf(key);
  }
  return problems;
}

}  // namespace mooncake::testing
