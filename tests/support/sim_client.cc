#include "support/sim_client.h"

#include <algorithm>

namespace mooncake::testing {

void SimClient::Run() {
  while (!cluster_.stop_clients_) {
    const std::vector<SimNode*> live = cluster_.Live();
    if (!live.empty()) DoOne(*live[Pick(live.size())]);
    cluster_.runtime_.SleepMs(Pick(cluster_.workload_.think_ms_max + 1));
  }
}

std::vector<std::string> SimClient::PickKeys() {
  const SimWorkload& workload = cluster_.workload_;
  std::vector<std::string> keys;
  const uint64_t count = 1 + Pick(static_cast<uint64_t>(workload.batch_max));
  while (keys.size() < count) {
    std::string key = "key-" + std::to_string(Pick(static_cast<uint64_t>(workload.keys)));
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
  }
  return keys;
}

void SimClient::DoOne(SimNode& node) {
  const std::vector<std::string> keys = PickKeys();
  const uint64_t dice = Pick(100);
  if (dice < 40) return Put(node, keys);
  if (dice < 82) return Get(node, keys);
  if (dice < 90 || !cluster_.workload_.removes) return Exist(node, keys);
  Remove(node, keys);
}

std::vector<size_t> SimClient::Begin(OpKind kind, const SimNode& node,
                                     const std::vector<std::string>& keys) {
  const bool put = kind == OpKind::kPut || kind == OpKind::kPutIfAbsent;
  std::vector<size_t> numbers;
  for (const std::string& key : keys) {
    const uint64_t version = put ? cluster_.next_version_++ : 0;
    numbers.push_back(
        cluster_.history_.Begin(kind, key, node.name(), version, cluster_.runtime_.NowMs()));
  }
  return numbers;
}

void SimClient::End(size_t number, const SimNode& node, const Error& error) {
  OpResult result = OpResult::kFailed;
  if (error.code == ErrorCode::kOk) result = OpResult::kOk;
  if (error.code == ErrorCode::kNotFound) result = OpResult::kMissing;
  // Nobody heard the answer of a process that is dead; one that closes had not begun.
  if (node.dead()) result = OpResult::kOpen;
  if (error.code == ErrorCode::kInvalidState && node.closing()) result = OpResult::kOpen;
  cluster_.history_.End(number, result, cluster_.runtime_.NowMs(),
                        result == OpResult::kFailed ? error.ToString() : "");
}

void SimClient::Put(SimNode& node, const std::vector<std::string>& keys) {
  const bool if_absent = Pick(5) == 0;
  ReplicateConfig two{.replica_num = 2, .prefer_local = Pick(2) == 0};
  ReplicateConfig own{.replica_num = 1, .prefer_local = true};
  const ReplicateConfig* policy = nullptr;
  const uint64_t dice = Pick(10);
  if (cluster_.workload_.policies && dice < 4) policy = dice < 2 ? &two : &own;
  const std::vector<size_t> numbers =
      Begin(if_absent ? OpKind::kPutIfAbsent : OpKind::kPut, node, keys);
  std::vector<std::string> values;
  for (size_t i = 0; i < keys.size(); ++i) {
    values.push_back(PutValueOf(keys[i], cluster_.history_.ops()[numbers[i]].version,
                                cluster_.workload_.value_bytes_max));
  }
  const std::vector<Status> statuses = node.Put(keys, values, if_absent, policy);
  for (size_t i = 0; i < keys.size(); ++i) {
    Error error = statuses[i].ok() ? Error{} : statuses[i].error();
    // A put misses nothing.
    if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kTransport;
    End(numbers[i], node, error);
  }
}

void SimClient::Get(SimNode& node, const std::vector<std::string>& keys) {
  const std::vector<size_t> numbers = Begin(OpKind::kGet, node, keys);
  const auto values = node.Get(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (values[i].ok()) {
      const auto version = VersionIn(keys[i], *values[i], cluster_.workload_.value_bytes_max);
      cluster_.history_.SetVersion(numbers[i], version.value_or(~uint64_t{0}));
    }
    End(numbers[i], node, values[i].ok() ? Error{} : values[i].error());
  }
}

void SimClient::Exist(SimNode& node, const std::vector<std::string>& keys) {
  const std::vector<size_t> numbers = Begin(OpKind::kExist, node, keys);
  const auto answers = node.Exist(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    Error error = answers[i].ok() ? Error{} : answers[i].error();
    if (answers[i].ok() && *answers[i] == Existence::kMissing) error.code = ErrorCode::kNotFound;
    End(numbers[i], node, error);
  }
}

void SimClient::Remove(SimNode& node, const std::vector<std::string>& keys) {
  const std::vector<size_t> numbers = Begin(OpKind::kRemove, node, keys);
  const std::vector<Status> statuses = node.Remove(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    End(numbers[i], node, statuses[i].ok() ? Error{} : statuses[i].error());
  }
}

}  // namespace mooncake::testing
