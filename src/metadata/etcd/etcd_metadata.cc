#include "metadata/etcd/etcd_metadata.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "metadata/etcd/etcd_url.h"

namespace mooncake::metadata {
namespace {

// Each time somebody else's change came first. The pauses double up to the longest.
constexpr int kAttemptsMax = 100;
constexpr uint64_t kPauseMsMax = 32;
// A call that takes so long has met a service that hung, and leases may have lapsed meanwhile.
constexpr uint64_t kSlowMs = 1'000;
// Every owner tries to renew its lease about once a second.
constexpr uint64_t kForgivingMs = 2'000;

}  // namespace

Result<std::unique_ptr<MetadataStore>> EtcdMetadata::Open(std::string_view url,
                                                          const EtcdOptions& options,
                                                          Runtime& runtime) {
  MC_TRY(EtcdAddress address, ParseEtcdUrl(url));
  std::unique_ptr<MetadataStore> store =
      std::make_unique<EtcdMetadata>(std::move(address), options, runtime);
  return store;
}

EtcdMetadata::EtcdMetadata(EtcdAddress address, const EtcdOptions& options, Runtime& runtime)
    : runtime_(runtime),
      pid_(getpid()),
      prefix_(fmt::format("{}/{{{}}}/", address.prefix, options.keyspace)),
      client_(std::move(address), options.timeouts, runtime) {}

EtcdSeen EtcdMetadata::Seen() {
  const bool was_away = runtime_.NowMs() < forgiving_until_ms_;
  base::MutexLock lock(mu_);
  EtcdSeen seen = seen_;
  seen.was_away = was_away;
  return seen;
}

void EtcdMetadata::Remember(const EtcdSeen& seen) {
  base::MutexLock lock(mu_);
  const uint64_t revision_max = std::max(seen_.revision_max, seen.revision_max);
  seen_ = seen;
  seen_.revision_max = revision_max;
}

Status EtcdMetadata::Transact(Access /*access*/, const Body& body) {
  // Before the lock: a thread that does not exist in the child may have held it at the fork.
  if (getpid() != pid_) {
    return InvalidState(fmt::format(
        "the metadata store was opened by process {} before a fork; set up a new one", pid_));
  }
  const EtcdTimeouts& timeouts = client_.timeouts();
  const uint64_t start_ms = runtime_.NowMs();
  const Status status = TransactBy(start_ms + timeouts.connect_ms + timeouts.io_ms, body);
  const uint64_t end_ms = runtime_.NowMs();
  if (!status.ok() || end_ms - start_ms > kSlowMs) forgiving_until_ms_ = end_ms + kForgivingMs;
  return status;
}

Status EtcdMetadata::TransactBy(uint64_t deadline_ms, const Body& body) {
  EtcdGrants grants;
  Unsure unsure;
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    if (attempt > 0) {
      const uint64_t longest_ms = std::min(uint64_t{1} << std::min(attempt, 10), kPauseMsMax);
      runtime_.SleepMs(1 + runtime_.Random() % longest_ms);
      if (runtime_.NowMs() >= deadline_ms) break;
    }
    if (!unsure.key.empty()) {
      MC_TRY(const bool happened, Happened(unsure, deadline_ms));
      if (happened) return Ok();
    }
    MC_TRY(const Run run, TryOnce(body, deadline_ms, grants, unsure));
    if (run == Run::kDone) return Ok();
  }
  if (!unsure.doubt.empty()) return MetadataError(unsure.doubt);
  return MetadataError("etcd: too many changes by others at the same time");
}

Result<EtcdMetadata::Run> EtcdMetadata::TryOnce(const Body& body, uint64_t deadline_ms,
                                                EtcdGrants& grants, Unsure& unsure) {
  const EtcdSeen seen = Seen();
  // Larger than all that this client has seen, also when its clock is behind that of the client
  // that filled a service which has lost everything since.
  const uint64_t now_ms = std::max(runtime_.WallMs(), seen.revision_max + 1);
  EtcdTable table(client_, prefix_, seen, now_ms, deadline_ms);
  body(table, now_ms);
  if (table.outdated()) return Run::kAgain;
  MC_RETURN_IF_ERROR(table.status());
  Remember(table.seen());
  MC_TRY(const bool alive, table.ExtendLeases(grants));
  if (!alive) return Run::kAgain;
  const std::string nonce = fmt::format("{:016x}", runtime_.Random());
  const EtcdCommit commit = table.TakeCommit(nonce);
  if (commit.empty()) return Run::kDone;
  MC_TRY(const EtcdOutcome outcome, client_.Commit(commit, deadline_ms, unsure.doubt));
  if (outcome == EtcdOutcome::kDone) return Run::kDone;
  if (outcome == EtcdOutcome::kUnknown && !commit.puts.empty()) {
    // The first in order is a key of its own where there is one, and not meta, which the next
    // change of anybody writes again.
    unsure.key = commit.puts.front().key;
    unsure.nonce = nonce;
  }
  return Run::kAgain;
}

Result<bool> EtcdMetadata::Happened(const Unsure& unsure, uint64_t deadline_ms) {
  bool outdated = false;
  const EtcdRange range{.key = unsure.key};
  MC_TRY(const EtcdRead read, client_.Read({&range, 1}, deadline_ms, outdated));
  const std::vector<EtcdKey>& keys = read.ranges[0].keys;
  return !keys.empty() && keys[0].value.starts_with(unsure.nonce);
}

}  // namespace mooncake::metadata
