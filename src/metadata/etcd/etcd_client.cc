#include "metadata/etcd/etcd_client.h"

#include <string_view>
#include <utility>

namespace mooncake::metadata {
namespace {

constexpr std::string_view kTxn = "/etcdserverpb.KV/Txn";
constexpr std::string_view kGrant = "/etcdserverpb.Lease/LeaseGrant";
constexpr std::string_view kKeepAlive = "/etcdserverpb.Lease/LeaseKeepAlive";

constexpr int kNotFoundCode = 5;     // A lease that ended meanwhile.
constexpr int kOutOfRangeCode = 11;  // A revision that was compacted, or is still to come.

}  // namespace

EtcdClient::EtcdClient(EtcdAddress address, EtcdTimeouts timeouts, Runtime& runtime)
    : transport_(std::move(address), timeouts, runtime) {}

Result<EtcdRead> EtcdClient::Read(std::span<const EtcdRange> ranges, uint64_t deadline_ms,
                                  bool& outdated) {
  EtcdFault fault;
  const std::string message = ReadRequest(ranges);
  Result<std::string> answer =
      transport_.Call({.method = kTxn, .message = message}, deadline_ms, fault);
  outdated = !answer.ok() && fault.code == kOutOfRangeCode;
  if (!answer) return answer.error();
  return ReadFrom(*answer, ranges.size());
}

Result<EtcdOutcome> EtcdClient::Commit(const EtcdCommit& commit, uint64_t deadline_ms,
                                       std::string& doubt) {
  EtcdFault fault;
  doubt.clear();
  const std::string message = CommitRequest(commit);
  const Result<std::string> answer = transport_.Call(
      {.method = kTxn, .message = message, .repeatable = false}, deadline_ms, fault);
  if (answer.ok()) {
    MC_TRY(const bool done, CommitFrom(*answer));
    return done ? EtcdOutcome::kDone : EtcdOutcome::kNotAsExpected;
  }
  if (fault.code == kNotFoundCode) return EtcdOutcome::kNotAsExpected;
  if (!fault.uncertain || answer.code() != ErrorCode::kMetadata) return answer.error();
  doubt = answer.error().context;
  return EtcdOutcome::kUnknown;
}

Result<uint64_t> EtcdClient::Grant(uint64_t ttl_s, uint64_t deadline_ms) {
  EtcdFault fault;
  const std::string message = GrantRequest(ttl_s);
  MC_TRY(const std::string answer,
         transport_.Call({.method = kGrant, .message = message}, deadline_ms, fault));
  return GrantFrom(answer);
}

Result<bool> EtcdClient::KeepAlive(uint64_t lease, uint64_t deadline_ms) {
  EtcdFault fault;
  const std::string message = KeepAliveRequest(lease);
  Result<std::string> answer =
      transport_.Call({.method = kKeepAlive, .message = message}, deadline_ms, fault);
  if (!answer && fault.code == kNotFoundCode) return false;
  if (!answer) return answer.error();
  return KeepAliveFrom(*answer);
}

}  // namespace mooncake::metadata
