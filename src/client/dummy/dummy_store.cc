#include "client/dummy/dummy_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/dummy/dummy_put.h"
#include "client/open_store.h"
#include "mooncake/observability.h"
#include "obs/log.h"
#include "runtime/real_runtime.h"

namespace mooncake::client {

namespace {

constexpr size_t kItemsPerCallMax = 4'096;

Error NotOpen() { return InvalidState("the store is not set up, or it has been closed"); }

Error RealOnly(std::string_view method) {
  return Unsupported(fmt::format(
      "{} is not available in dummy mode; use setup(...) for a store of its own", method));
}

template <typename T>
std::vector<Result<T>> Refuse(size_t count, const Error& error) {
  std::vector<Result<T>> results;
  results.reserve(count);
  for (size_t i = 0; i < count; ++i) results.emplace_back(error);
  return results;
}

}  // namespace

Result<std::unique_ptr<Store>> DummyStore::Open(const DummyConfig& config) {
  auto runtime = std::make_unique<runtime::RealRuntime>();
  runtime->SetInterruptCheck(InterruptWanted);
  MC_TRY(auto link, Link::Connect(config, *runtime));
  return std::unique_ptr<Store>(
      std::make_unique<DummyStore>(config, std::move(runtime), std::move(link)));
}

DummyStore::DummyStore(const DummyConfig& config, std::unique_ptr<Runtime> runtime,
                       std::unique_ptr<Link> link)
    : config_(config), runtime_(std::move(runtime)), link_(std::move(link)), staging_(*link_) {}

DummyStore::~DummyStore() { Close(); }

void DummyStore::Close() {
  if (gate_.closed()) return;
  gate_.Close();
  link_->Close();
}

// --- Writing --------------------------------------------------------------------------------

std::vector<Status> DummyStore::PutMany(std::span<const PutItem> items, const PutOptions& options) {
  base::Gate::Pass pass(gate_);
  if (!pass) return Refuse<void>(items.size(), NotOpen());
  std::vector<Status> statuses(items.size());
  const auto region_of = [this](const void* data, size_t size) { return RegionOf(data, size); };
  for (size_t next = 0; next < items.size();) {
    DummyPut put(*link_, staging_, options, items.size() - next);
    for (; next < items.size(); ++next) {
      if (statuses[next] = CheckKey(items[next].key); !statuses[next]) continue;
      const Result<bool> added = put.Add(next, items[next], region_of);
      if (!added) statuses[next] = added.error();
      if (added.ok() && !*added) break;  // Full: send, then go on with this item.
    }
    put.Send(&statuses);
  }
  return statuses;
}

// --- Reading --------------------------------------------------------------------------------

std::vector<Result<uint64_t>> DummyStore::Read(const GetWanted& wanted, std::string_view tenant) {
  base::Gate::Pass pass(gate_);
  if (!pass) return Refuse<uint64_t>(wanted.keys.size(), NotOpen());
  return DummyGet(*link_, *runtime_, hints_, wanted, tenant).Run();
}

std::vector<Result<uint64_t>> DummyStore::GetMany(std::span<const GetItem> items,
                                                  std::string_view tenant) {
  std::vector<std::string_view> keys;
  GetWanted wanted;
  keys.reserve(items.size());
  wanted.limits.reserve(items.size());
  for (const GetItem& item : items) {
    keys.push_back(item.key);
    wanted.limits.push_back(TotalSize(item.targets));
  }
  wanted.keys = keys;
  wanted.targets = [&](size_t i, uint64_t) {
    return std::optional<std::span<const MutableBytes>>(items[i].targets);
  };
  return Read(wanted, tenant);
}

std::vector<Result<uint64_t>> DummyStore::GetManyAllocated(std::span<const std::string_view> keys,
                                                           std::string_view tenant,
                                                           const AllocateTarget& allocate) {
  std::vector<std::optional<MutableBytes>> allocated(keys.size());
  GetWanted wanted;
  wanted.keys = keys;
  wanted.limits.assign(keys.size(), UINT64_MAX);
  wanted.allow_inline = true;
  wanted.targets = [&](size_t i, uint64_t size) -> std::optional<std::span<const MutableBytes>> {
    if (!allocated[i] || allocated[i]->size() != size) allocated[i] = allocate(i, size);
    if (!allocated[i]) return std::nullopt;
    return std::span<const MutableBytes>(&*allocated[i], 1);
  };
  return Read(wanted, tenant);
}

std::vector<Result<uint64_t>> DummyStore::GetRanges(std::span<const RangeItem> items,
                                                    std::string_view tenant) {
  std::vector<std::string_view> keys;
  GetWanted wanted;
  for (const RangeItem& item : items) {
    keys.push_back(item.key);
    wanted.limits.push_back(item.target.size());
    wanted.offsets.push_back(item.offset);
  }
  wanted.keys = keys;
  wanted.targets = [&](size_t i, uint64_t) {
    return std::optional(std::span<const MutableBytes>(&items[i].target, 1));
  };
  return Read(wanted, tenant);
}

// --- Keys -----------------------------------------------------------------------------------

namespace {

// Asks about the good keys of a batch in parts; `take` gets each item's code and error text.
template <typename Send, typename Take>
void AskInParts(std::span<const std::string_view> keys, std::string_view tenant, Send send,
                Take take) {
  std::vector<size_t> good;
  good.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (Status status = CheckKey(keys[i]); !status) {
      take(i, status.error());
    } else {
      good.push_back(i);
    }
  }
  size_t end = 0;
  for (size_t begin = 0; begin < good.size(); begin = end) {
    uint64_t bytes = 0;
    for (; end < good.size() && end - begin < kItemsPerCallMax; ++end) {
      bytes += keys[good[end]].size();
      if (bytes > kKeyBytesPerCallMax) break;
    }
    daemon_v1::KeysRequest request;
    request.set_tenant(std::string(tenant));
    request.set_api(std::string(ApiScope::OfThread().name));
    AddKeys(keys, std::span(good).subspan(begin, end - begin), request.mutable_keys());
    daemon_v1::CodesReply reply;
    Status status = send(request, &reply);
    if (status.ok() && reply.codes_size() != static_cast<int>(end - begin)) {
      status = TransportError("a malformed reply of the daemon");
    }
    int failed = 0;
    for (size_t k = begin; k < end; ++k) {
      if (!status.ok()) {
        take(good[k], status.error());
        continue;
      }
      const int32_t code = reply.codes(static_cast<int>(k - begin));
      if (code >= 0) {
        take(good[k], code);
        continue;
      }
      take(good[k], ItemError(code, failed < reply.errors_size() ? reply.errors(failed) : ""));
      ++failed;
    }
  }
}

}  // namespace

std::vector<Result<Existence>> DummyStore::ExistMany(std::span<const std::string_view> keys,
                                                     std::string_view tenant) {
  base::Gate::Pass pass(gate_);
  if (!pass) return Refuse<Existence>(keys.size(), NotOpen());
  std::vector<Result<Existence>> results = Refuse<Existence>(keys.size(), Error{});
  AskInParts(
      keys, tenant, [this](auto& request, auto* reply) { return link_->Exist(request, reply); },
      [&](size_t i, Result<int32_t> code) {
        if (!code.ok()) {
          results[i] = code.error();
        } else {
          results[i] = *code == 1 ? Existence::kPresent : Existence::kMissing;
        }
      });
  return results;
}

std::vector<Status> DummyStore::RemoveMany(std::span<const std::string_view> keys,
                                           std::string_view tenant) {
  base::Gate::Pass pass(gate_);
  if (!pass) return Refuse<void>(keys.size(), NotOpen());
  std::vector<Status> statuses(keys.size());
  AskInParts(
      keys, tenant, [this](auto& request, auto* reply) { return link_->Remove(request, reply); },
      [&](size_t i, const Result<int32_t>& code) {
        if (!code.ok()) statuses[i] = code.error();
      });
  return statuses;
}

Result<uint64_t> DummyStore::GetSize(std::string_view key, std::string_view tenant) {
  base::Gate::Pass pass(gate_);
  if (!pass) return NotOpen();
  MC_RETURN_IF_ERROR(CheckKey(key));
  daemon_v1::KeysRequest request;
  request.set_tenant(std::string(tenant));
  AddKey(key, request.mutable_keys());
  daemon_v1::SizesReply reply;
  MC_RETURN_IF_ERROR(link_->Sizes(request, &reply));
  if (reply.codes_size() != 1 || reply.sizes_size() != 1) {
    return TransportError("a malformed reply of the daemon");
  }
  if (reply.codes(0) != 0) {
    return ItemError(reply.codes(0), reply.errors_size() > 0 ? reply.errors(0) : "");
  }
  return reply.sizes(0);
}

Result<uint64_t> DummyStore::RemoveAll(std::string_view tenant) {
  base::Gate::Pass pass(gate_);
  if (!pass) return NotOpen();
  daemon_v1::RemoveAllRequest request;
  request.set_tenant(std::string(tenant));
  daemon_v1::RemoveAllReply reply;
  MC_RETURN_IF_ERROR(link_->RemoveAll(request, &reply));
  if (reply.code() != 0) return ItemError(reply.code(), reply.error());
  return reply.removed();
}

// --- Registered memory ----------------------------------------------------------------------

Status DummyStore::RegisterBuffer(void* data, size_t size) {
  base::MutexLock serial(register_mu_);
  base::Gate::Pass pass(gate_);
  if (!pass) return NotOpen();
  const auto shared =
      config_.find_shared ? config_.find_shared(data, size) : std::optional<SharedRange>();
  if (data == nullptr || size == 0 || !shared) {
    return InvalidArgument(fmt::format(
        "register_buffer: [{:#x}, +{}) is not memory of a MooncakeHostMemAllocator, which is the "
        "only memory that a daemon can share",
        reinterpret_cast<uintptr_t>(data), size));
  }
  bool known = false;
  {
    base::MutexLock lock(mu_);
    known = registered_.contains(shared->allocation);
  }
  if (!known) {
    MC_RETURN_IF_ERROR(link_->RegisterRegion(shared->allocation, shared->fd, shared->file_size));
  }
  base::MutexLock lock(mu_);
  std::unique_ptr<RangeTable>& table = registered_[shared->allocation];
  if (!table) table = std::make_unique<RangeTable>();
  table->AddOwn({data, size});
  return Ok();
}

Result<DummyStore::Removed> DummyStore::RemoveRange(const void* data, std::optional<size_t> size) {
  base::MutexLock lock(mu_);
  for (auto it = registered_.rbegin(); it != registered_.rend(); ++it) {
    const Result<RegisteredRange> range = it->second->Remove(data, size);
    if (!range) continue;
    const Removed removed{*range, it->first};
    if (it->second->size() == 0) registered_.erase(removed.allocation);
    return removed;
  }
  return NotRegistered(data, size);
}

void DummyStore::Restore(const Removed& removed) {
  // It can only fail where the daemon is gone, or the store is closed: nothing is lost then.
  static_cast<void>(RegisterBuffer(const_cast<void*>(removed.range.data), removed.range.size));
}

void DummyStore::ForgetUnused(uint64_t allocation) {
  base::MutexLock serial(register_mu_);
  {
    base::MutexLock lock(mu_);
    if (registered_.contains(allocation)) return;
  }
  link_->UnregisterRegion(allocation);
}

Status DummyStore::UnregisterBuffer(void* data, std::optional<size_t> size) {
  Removed removed;
  {
    base::Gate::Pass pass(gate_);
    if (!pass) return NotOpen();
    MC_TRY(removed, RemoveRange(data, size));
  }
  // Holds and calls that may still use the range came before; wait until each of them has left.
  Status left = AwaitCallers(gate_, *runtime_, runtime_->NowMs() + config_.rpc_timeout_ms);
  if (!left) {
    Restore(removed);
    return left;
  }
  ForgetUnused(removed.allocation);
  return Ok();
}

Status DummyStore::UnregisterWithin(const void* data, size_t size) {
  std::vector<Removed> removed;
  {
    base::MutexLock lock(mu_);
    for (auto it = registered_.begin(); it != registered_.end();) {
      for (const RegisteredRange& range : it->second->RemoveWithin(data, size)) {
        removed.push_back({range, it->first});
      }
      it = it->second->size() == 0 ? registered_.erase(it) : std::next(it);
    }
  }
  if (removed.empty()) return Ok();
  Status left = AwaitCallers(gate_, *runtime_, runtime_->NowMs() + config_.rpc_timeout_ms);
  for (const Removed& one : removed) {
    if (left.ok()) {
      ForgetUnused(one.allocation);
    } else {
      Restore(one);
    }
  }
  return left;
}

std::optional<RegionRange> DummyStore::RegionOf(const void* data, size_t size) const {
  if (!config_.find_shared) return std::nullopt;
  const auto shared = config_.find_shared(data, size);
  if (!shared) return std::nullopt;
  base::MutexLock lock(mu_);
  const auto found = registered_.find(shared->allocation);
  if (found == registered_.end()) return std::nullopt;
  const std::optional<ConstBytes> memory = found->second->Find(data, size);
  if (!memory) return std::nullopt;
  const auto before = static_cast<uint64_t>(static_cast<const std::byte*>(data) - memory->data());
  return RegionRange{*memory, shared->allocation, shared->offset - before};
}

bool DummyStore::IsRegistered(const void* data, size_t size) const {
  return !gate_.closed() && RegionOf(data, size).has_value();
}

// --- What only a real store has ---------------------------------------------------------------

Result<RouteInfo> DummyStore::QueryRoute(std::string_view, std::string_view) {
  return RealOnly("query_route");
}
Status DummyStore::Heartbeat(std::optional<uint64_t>) { return RealOnly("heartbeat"); }
std::vector<SegmentInfo> DummyStore::ListSegments(bool) { return {}; }
Status DummyStore::SetState(std::string_view) {
  return RealOnly("activate, enter_standby or enter_draining");
}

std::string DummyStore::MetricsText() {
  daemon_v1::MetricsRequest request;
  daemon_v1::MetricsReply reply;
  if (Status status = link_->Metrics(request, &reply); !status.ok()) {
    obs::LogRateLimited(obs::LogLevel::kWarning, "dummy.metrics", status.error().ToString());
  }
  return reply.text();
}

Status DummyStore::CheckHealth() {
  base::Gate::Pass pass(gate_);
  if (!pass) return NotOpen();
  return link_->Health();
}

}  // namespace mooncake::client

namespace mooncake {

Result<std::unique_ptr<Store>> Store::OpenDummy(const DummyConfig& config) {
  return client::DummyStore::Open(config);
}

}  // namespace mooncake
