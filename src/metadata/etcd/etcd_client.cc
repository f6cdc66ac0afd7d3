#include "metadata/etcd/etcd_client.h"

#include <utility>

namespace mooncake::metadata {
namespace {

constexpr int kNotFoundCode = 5;     // A lease that ended meanwhile.
constexpr int kOutOfRangeCode = 11;  // A revision that was compacted, or is still to come.

}  // namespace

EtcdClient::EtcdClient(EtcdAddress address, EtcdTimeouts timeouts, Runtime& runtime)
    : transport_(std::move(address), timeouts, runtime) {}

Result<EtcdRead> EtcdClient::Read(std::span<const EtcdRange> ranges, uint64_t deadline_ms,
                                  bool& outdated) {
  EtcdFault fault;
  const std::string body = ReadToJson(ranges);
  Result<std::string> answer =
      transport_.Call({.path = "/v3/kv/txn", .body = body}, deadline_ms, fault);
  outdated = !answer.ok() && fault.code == kOutOfRangeCode;
  if (!answer) return answer.error();
  return ReadFromJson(*answer, ranges.size());
}

Result<EtcdOutcome> EtcdClient::Commit(const EtcdCommit& commit, uint64_t deadline_ms) {
  EtcdFault fault;
  const std::string body = CommitToJson(commit);
  const Result<std::string> answer = transport_.Call(
      {.path = "/v3/kv/txn", .body = body, .repeatable = false}, deadline_ms, fault);
  if (answer.ok()) {
    MC_TRY(const bool done, CommitFromJson(*answer));
    return done ? EtcdOutcome::kDone : EtcdOutcome::kNotAsExpected;
  }
  if (fault.code == kNotFoundCode) return EtcdOutcome::kNotAsExpected;
  if (fault.uncertain && answer.code() == ErrorCode::kMetadata) return EtcdOutcome::kUnknown;
  return answer.error();
}

Result<uint64_t> EtcdClient::Grant(uint64_t ttl_s, uint64_t deadline_ms) {
  EtcdFault fault;
  const std::string body = GrantToJson(ttl_s);
  MC_TRY(const std::string answer,
         transport_.Call({.path = "/v3/lease/grant", .body = body}, deadline_ms, fault));
  return GrantFromJson(answer);
}

Result<bool> EtcdClient::KeepAlive(uint64_t lease, uint64_t deadline_ms) {
  EtcdFault fault;
  const std::string body = KeepAliveToJson(lease);
  Result<std::string> answer =
      transport_.Call({.path = "/v3/lease/keepalive", .body = body}, deadline_ms, fault);
  if (!answer && fault.code == kNotFoundCode) return false;
  if (!answer) return answer.error();
  return KeepAliveFromJson(*answer);
}

}  // namespace mooncake::metadata
