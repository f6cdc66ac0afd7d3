#include "client/local_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/lease_limits.h"
#include "base/text.h"
#include "node/put_op.h"
#include "node/query_op.h"
#include "node/read_op.h"
#include "obs/phase_span.h"

namespace mooncake::client {

namespace {

Error NotOpen() { return InvalidState("the store is not set up, or it has been closed"); }

Status CheckKey(std::string_view key) {
  if (!key.empty() && key.size() <= kKeySizeMax) return Ok();
  return InvalidArgument(
      fmt::format("key of {} bytes: expected 1 to {} bytes of UTF-8", key.size(), kKeySizeMax));
}

// Of a batch, the items with good keys, in order, as the verbs want them.
template <typename Item>
struct Batch {
  std::vector<Item> items;
  std::vector<size_t> index;  // Where each belongs in the caller's batch.
};

}  // namespace

LocalStore::LocalStore(const StoreConfig& config, StoreParts parts)
    : config_(config),
      parts_(std::move(parts)),
      calls_(*parts_.metrics, config.request_timeout_ms, config.tenant),
      core_(parts_.node->core()),
      own_scope_(core_.scopes.Intern(ScopeFor({}))),
      gauges_(*parts_.metrics, core_),
      source_(std::make_unique<obs::MetricsHub::Source>(obs::MetricsHub::OfProcess(), config.tenant,
                                                        [this] { return ReadMetrics(); })) {}

LocalStore::~LocalStore() { Close(); }

void LocalStore::Close() {
  if (closed_.exchange(true)) return;
  parts_.node->Close();
  source_.reset();  // Nothing is counted any more.
}

Status LocalStore::CheckHealth() {
  if (closed()) return NotOpen();
  if (!core_.membership.superseded()) return Ok();
  return StaleEpoch(core_.membership.self_name() + " is no member of the cluster any more");
}

routing::Scope LocalStore::ScopeFor(std::string_view tenant) const {
  return {tenant.empty() ? config_.tenant : std::string(tenant), config_.domain,
          config_.object_set};
}

Result<node::ScopeTable::Entry> LocalStore::EntryFor(std::string_view tenant) {
  if ((tenant.empty() || tenant == config_.tenant) && own_scope_) return *own_scope_;
  if (tenant.size() > node::kScopeSizeMax) {
    return InvalidArgument(
        fmt::format("tenant of {} bytes: expected at most {}", tenant.size(), node::kScopeSizeMax));
  }
  if (!base::IsUtf8(tenant)) return InvalidArgument("tenant: expected UTF-8");
  const auto entry = core_.scopes.Intern(ScopeFor(tenant));
  if (!entry) return BackPressure("too many scopes are in use, or their names are too long");
  return *entry;
}

uint64_t LocalStore::Deadline() const {
  return parts_.runtime->NowMs() + config_.request_timeout_ms;
}

bool LocalStore::TracesItems(const CallMetrics::Call& call) const {
  if (call.request() == 0 || !obs::Tracer::OfProcess().wants_items()) return false;
  return call.operation() == Operation::kBatchPutFrom ||
         call.operation() == Operation::kBatchPutFromMultiBuffers ||
         call.operation() == Operation::kBatchGetInto ||
         call.operation() == Operation::kBatchGetIntoMultiBuffers;
}

namespace {
uint64_t OfferedBy(const PutItem& item) { return TotalSize(item.parts); }
uint64_t OfferedBy(const GetItem& item) { return TotalSize(item.targets); }
int64_t ReadBy(const Status&) { return -1; }
int64_t ReadBy(const Result<uint64_t>& result) {
  return result.ok() ? static_cast<int64_t>(*result) : -1;
}
}  // namespace

template <typename Item, typename Outcome>
void LocalStore::TraceItems(const CallMetrics::Call& call, std::string_view tenant,
                            std::span<const Item> items, const std::vector<Outcome>& outcomes) {
  std::vector<obs::TracedItem> traced;
  traced.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    traced.push_back({items[i].key, OfferedBy(items[i]), ReadBy(outcomes[i]),
                      static_cast<int32_t>(outcomes[i].code())});
  }
  const routing::Scope scope = ScopeFor(tenant);
  const std::string name = NodeName();
  obs::Tracer::OfProcess().WriteItems(
      call.request(), {NameOf(call.operation()), scope.tenant, scope.domain, scope.object_set, name,
                       parts_.runtime->WallMs(), traced});
}

template <typename T>
std::vector<Result<T>> LocalStore::Refuse(size_t count, const Error& error) const {
  std::vector<Result<T>> results;
  results.reserve(count);
  for (size_t i = 0; i < count; ++i) results.emplace_back(error);
  return results;
}

std::vector<Result<uint64_t>> LocalStore::Read(const node::ReadRequest& request) {
  if (parts_.hot) return parts_.hot->Read(core_, request, 0);
  return node::ReadValues(core_, request);
}

std::vector<Status> LocalStore::PutMany(std::span<const PutItem> items, const PutOptions& options) {
  return PutWanted(items, options, {});
}

std::vector<Status> LocalStore::PutWanted(std::span<const PutItem> items, const PutOptions& options,
                                          std::function<bool()> wanted) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return Refuse<void>(items.size(), NotOpen());
  const auto scope = EntryFor(options.tenant);
  if (!scope) return Refuse<void>(items.size(), scope.error());
  CallMetrics::Call call(calls_, *parts_.runtime, Operation::kBatchPut);
  std::vector<Status> statuses(items.size());
  Batch<node::WriteItem> batch;
  batch.items.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (statuses[i] = CheckKey(items[i].key); !statuses[i]) continue;
    const uint64_t size = TotalSize(items[i].parts);
    batch.items.push_back({node::MakeKeyRef(*scope, items[i].key), items[i].parts, size});
    batch.index.push_back(i);
    call.BytesIn(size);
  }
  const node::WriteOptions write{options.replicate, options.if_absent, Deadline(),
                                 std::move(wanted)};
  std::vector<Status> written = node::WriteValues(core_, batch.items, write);
  if (parts_.hot) {
    for (const node::WriteItem& item : batch.items) parts_.hot->Erase(item.ref);
  }
  for (size_t k = 0; k < written.size(); ++k) statuses[batch.index[k]] = std::move(written[k]);
  for (const Status& status : statuses) call.Item(status);
  if (TracesItems(call)) TraceItems(call, options.tenant, items, statuses);
  return statuses;
}

std::vector<Result<uint64_t>> LocalStore::GetMany(std::span<const GetItem> items,
                                                  std::string_view tenant) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return Refuse<uint64_t>(items.size(), NotOpen());
  const auto scope = EntryFor(tenant);
  if (!scope) return Refuse<uint64_t>(items.size(), scope.error());
  CallMetrics::Call call(calls_, *parts_.runtime, Operation::kBatchGet);
  std::vector<Result<uint64_t>> results = Refuse<uint64_t>(items.size(), Error{});
  Batch<node::ReadItem> batch;
  batch.items.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (Status status = CheckKey(items[i].key); !status) {
      results[i] = std::move(status).error();
      continue;
    }
    batch.items.push_back(
        {node::MakeKeyRef(*scope, items[i].key), items[i].targets, TotalSize(items[i].targets), 0});
    batch.index.push_back(i);
  }
  auto read = Read({batch.items, false, {}, Deadline()});
  for (size_t k = 0; k < read.size(); ++k) results[batch.index[k]] = std::move(read[k]);
  for (const auto& result : results) {
    call.Item(result);
    if (result.ok()) call.BytesOut(*result);
  }
  if (TracesItems(call)) TraceItems(call, tenant, items, results);
  return results;
}

std::vector<Result<uint64_t>> LocalStore::GetManyAllocated(std::span<const std::string_view> keys,
                                                           std::string_view tenant,
                                                           const AllocateTarget& allocate) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return Refuse<uint64_t>(keys.size(), NotOpen());
  const auto scope = EntryFor(tenant);
  if (!scope) return Refuse<uint64_t>(keys.size(), scope.error());
  CallMetrics::Call call(calls_, *parts_.runtime, Operation::kBatchGet);
  std::vector<Result<uint64_t>> results = Refuse<uint64_t>(keys.size(), Error{});
  Batch<node::ReadItem> batch;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (Status status = CheckKey(keys[i]); !status) {
      results[i] = std::move(status).error();
      continue;
    }
    batch.items.push_back({node::MakeKeyRef(*scope, keys[i]), {}, 0, 0});
    batch.index.push_back(i);
  }
  auto read =
      Read({batch.items, false,
            [&](size_t k, uint64_t size) { return allocate(batch.index[k], size); }, Deadline()});
  for (size_t k = 0; k < read.size(); ++k) results[batch.index[k]] = std::move(read[k]);
  for (const auto& result : results) {
    call.Item(result);
    if (result.ok()) call.BytesOut(*result);
  }
  return results;
}

std::vector<Result<uint64_t>> LocalStore::GetRanges(std::span<const RangeItem> items,
                                                    std::string_view tenant) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return Refuse<uint64_t>(items.size(), NotOpen());
  const auto scope = EntryFor(tenant);
  if (!scope) return Refuse<uint64_t>(items.size(), scope.error());
  CallMetrics::Call call(calls_, *parts_.runtime, Operation::kGetIntoRanges);
  std::vector<Result<uint64_t>> results = Refuse<uint64_t>(items.size(), Error{});
  Batch<node::ReadItem> batch;
  batch.items.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (Status status = CheckKey(items[i].key); !status) {
      results[i] = std::move(status).error();
      continue;
    }
    batch.items.push_back({node::MakeKeyRef(*scope, items[i].key),
                           {&items[i].target, 1},
                           items[i].target.size(),
                           items[i].offset});
    batch.index.push_back(i);
  }
  auto read = Read({batch.items, true, {}, Deadline()});
  for (size_t k = 0; k < read.size(); ++k) results[batch.index[k]] = std::move(read[k]);
  for (const auto& result : results) {
    call.Item(result);
    if (result.ok()) call.BytesOut(*result);
  }
  return results;
}

std::vector<Result<Existence>> LocalStore::ExistMany(std::span<const std::string_view> keys,
                                                     std::string_view tenant) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return Refuse<Existence>(keys.size(), NotOpen());
  const auto scope = EntryFor(tenant);
  if (!scope) return Refuse<Existence>(keys.size(), scope.error());
  CallMetrics::Call call(calls_, *parts_.runtime, Operation::kBatchIsExist);
  std::vector<Result<Existence>> results = Refuse<Existence>(keys.size(), Error{});
  Batch<node::KeyRef> batch;
  batch.items.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (Status status = CheckKey(keys[i]); !status) {
      results[i] = std::move(status).error();
      continue;
    }
    batch.items.push_back(node::MakeKeyRef(*scope, keys[i]));
    batch.index.push_back(i);
  }
  const std::vector<Status> answers = node::ExistKeys(core_, batch.items, Deadline());
  for (size_t k = 0; k < answers.size(); ++k) {
    Result<Existence>& result = results[batch.index[k]];
    if (answers[k].ok()) {
      result = Existence::kPresent;
    } else {
      result = answers[k].error();
    }
  }
  for (Result<Existence>& result : results) {
    call.Item(result);
    if (result.code() == ErrorCode::kNotFound) result = Existence::kMissing;
  }
  return results;
}

std::vector<Status> LocalStore::RemoveMany(std::span<const std::string_view> keys,
                                           std::string_view tenant) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return Refuse<void>(keys.size(), NotOpen());
  const auto scope = EntryFor(tenant);
  if (!scope) return Refuse<void>(keys.size(), scope.error());
  CallMetrics::Call call(calls_, *parts_.runtime, Operation::kBatchRemove);
  std::vector<Status> statuses(keys.size());
  Batch<node::KeyRef> batch;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (statuses[i] = CheckKey(keys[i]); !statuses[i]) continue;
    batch.items.push_back(node::MakeKeyRef(*scope, keys[i]));
    batch.index.push_back(i);
  }
  std::vector<Status> removed = node::RemoveKeys(core_, batch.items, Deadline());
  if (parts_.hot) {
    for (const node::KeyRef& ref : batch.items) parts_.hot->Erase(ref);
  }
  for (size_t k = 0; k < removed.size(); ++k) statuses[batch.index[k]] = std::move(removed[k]);
  for (const Status& status : statuses) call.Item(status);
  return statuses;
}

Result<uint64_t> LocalStore::GetSize(std::string_view key, std::string_view tenant) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  MC_RETURN_IF_ERROR(CheckKey(key));
  MC_TRY(const node::ScopeTable::Entry scope, EntryFor(tenant));
  CallMetrics::Call call(calls_, *parts_.runtime, Operation::kGetSize);
  const node::KeyRef ref = node::MakeKeyRef(scope, key);
  auto route = std::move(node::FindRoutes(core_, {&ref, 1}, Deadline())[0]);
  call.Item(route);
  if (!route) return std::move(route).error();
  return route->size;
}

Result<RouteInfo> LocalStore::QueryRoute(std::string_view key, std::string_view tenant) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  MC_RETURN_IF_ERROR(CheckKey(key));
  MC_TRY(const node::ScopeTable::Entry scope, EntryFor(tenant));
  CallMetrics::Call call(calls_, *parts_.runtime, Operation::kQueryRoute);
  const node::KeyRef ref = node::MakeKeyRef(scope, key);
  auto route = std::move(node::FindRoutes(core_, {&ref, 1}, Deadline())[0]);
  call.Item(route);
  if (!route) return std::move(route).error();
  RouteInfo info;
  info.key = routing::RouteKeyText(ScopeFor(tenant), key);
  info.version = route->version;
  info.size = route->size;
  const node::ViewPtr view = core_.view();
  for (const node::Place& place : route->replicas) {
    ReplicaInfo& replica = info.replicas.emplace_back();
    replica.owner = core_.names.NameOf(place.owner);
    replica.segment_offset = place.offset;
    replica.length = route->size;
    replica.priority = static_cast<uint32_t>(info.replicas.size() - 1);
    const routing::NodeIndex owner = view->FindName(replica.owner);
    if (owner == routing::kNoNode) continue;
    const auto& segments = view->node(owner).lease.segments;
    if (place.segment < segments.size()) replica.segment_name = segments[place.segment].name;
  }
  return info;
}

Result<uint64_t> LocalStore::RemoveAll(std::string_view tenant) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  CallMetrics::Call call(calls_, *parts_.runtime, Operation::kRemoveAll);
  auto removed = node::RemoveScope(core_, ScopeFor(tenant), Deadline());
  if (parts_.hot) {
    if (const auto scope = EntryFor(tenant); scope.ok()) parts_.hot->EraseScope(scope->index);
  }
  call.Item(removed.code());
  return removed;
}

Status LocalStore::RegisterBuffer(void* data, size_t size) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  CallMetrics::Call call(calls_, *parts_.runtime, Operation::kRegisterBuffer);
  Status status;
  {
    obs::PhaseSpan span(*parts_.runtime, "data.registration");
    status = ranges_.Add(data, size);
  }
  call.Item(status.code());
  return status;
}

Status LocalStore::UnregisterBuffer(void* data, std::optional<size_t> size) {
  RegisteredRange range;
  {
    base::Gate::Pass pass(parts_.node->gate());
    if (!pass) return NotOpen();
    CallMetrics::Call call(calls_, *parts_.runtime, Operation::kUnregisterBuffer);
    const Result<RegisteredRange> removed = ranges_.Remove(data, size);
    call.Item(removed.code());
    if (!removed) return removed.error();
    range = *removed;
  }
  // Holds and calls that may still use the range came before; wait until each of them has left.
  Status left = AwaitCallers(parts_.node->gate(), *parts_.runtime, Deadline());
  if (!left) ranges_.AddOwn(range);
  return left;
}

Status LocalStore::UnregisterWithin(const void* data, size_t size) {
  const std::vector<RegisteredRange> removed = ranges_.RemoveWithin(data, size);
  if (removed.empty()) return Ok();
  Status left = AwaitCallers(parts_.node->gate(), *parts_.runtime, Deadline());
  if (left.ok()) return left;
  for (const RegisteredRange& range : removed) ranges_.AddOwn(range);
  return left;
}

bool LocalStore::IsRegistered(const void* data, size_t size) const {
  if (closed()) return false;  // Nothing holds it any more: see MemoryHold.
  if (parts_.pool && parts_.pool->Contains(data, size)) return true;
  return ranges_.Contains(data, size);
}

bool LocalStore::IsWritable(const void* data, size_t size) const {
  if (closed()) return false;
  if (parts_.pool && parts_.pool->Contains(data, size)) return true;
  return ranges_.Contains(data, size, true);
}

uint64_t LocalStore::LocalPoolCapacity() const { return parts_.pool ? parts_.pool->capacity() : 0; }

std::optional<MutableBytes> LocalStore::LocalPoolTryAcquire(size_t size) {
  if (!parts_.pool || closed()) return std::nullopt;
  return parts_.pool->TryAcquire(size);
}

void LocalStore::LocalPoolRelease(MutableBytes lease) {
  if (parts_.pool) parts_.pool->Release(lease);
}

std::string LocalStore::Hostname() const { return parts_.node->endpoint(); }

std::string LocalStore::NodeName() const { return parts_.node->name(); }

Status LocalStore::Heartbeat(std::optional<uint64_t> expires_at_ms) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  if (!expires_at_ms) return parts_.node->Heartbeat();
  const uint64_t now_ms = parts_.node->core().runtime.WallMs();
  if (*expires_at_ms <= now_ms) {
    return InvalidArgument(
        fmt::format("expires_at_ms {}: expected a time after now, {}, in milliseconds since 1970",
                    *expires_at_ms, now_ms));
  }
  if (*expires_at_ms - now_ms > kLeaseMsMax) {
    return InvalidArgument(fmt::format(
        "expires_at_ms {}: expected a time at most {} ms (7 days) after now, {}, in milliseconds "
        "since 1970",
        *expires_at_ms, kLeaseMsMax, now_ms));
  }
  return parts_.node->Heartbeat(*expires_at_ms - now_ms);
}

obs::MetricSet LocalStore::ReadMetrics() {
  calls_.Refresh();
  gauges_.Refresh();
  if (parts_.hot) parts_.hot->RefreshGauges();
  parts_.metrics->GetGauge("registered_ranges", {}).Set(static_cast<double>(ranges_.size()));
  return parts_.metrics->Export();
}

std::string LocalStore::MetricsText() { return ReadMetrics().Text(config_.tenant); }

void LocalStore::CountRefused() {
  const CallMetrics::Call call(calls_, *parts_.runtime, Operation::kPut);
}

}  // namespace mooncake::client
