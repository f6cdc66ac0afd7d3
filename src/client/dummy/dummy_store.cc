#include "client/dummy/dummy_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/dummy/dummy_put.h"
#include "client/open_store.h"
#include "node/payload.h"
#include "obs/log.h"
#include "runtime/real_runtime.h"

namespace mooncake::client {

namespace {

constexpr size_t kItemsPerCallMax = 4'096;
constexpr size_t kUnknownPerCallMax = 128;  // Items whose size only the daemon knows.
constexpr uint64_t kBytesPerCallMax = 256ULL << 20;
constexpr int kRoundsMax = 3;

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

template <typename Keys>
daemon_v1::KeysRequest RequestFor(const Keys& keys, std::string_view tenant) {
  daemon_v1::KeysRequest request;
  request.set_tenant(std::string(tenant));
  for (std::string_view key : keys) AddKey(key, request.mutable_keys());
  return request;
}

}  // namespace

Status CheckKey(std::string_view key) {
  if (!key.empty() && key.size() <= kKeySizeMax) return Ok();
  return InvalidArgument(
      fmt::format("key of {} bytes: expected 1 to {} bytes of UTF-8", key.size(), kKeySizeMax));
}

void AddKey(std::string_view key, daemon_v1::Keys* keys) {
  keys->mutable_blob()->append(key);
  keys->add_sizes(static_cast<uint32_t>(key.size()));
}

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
    DummyPut put(*link_, staging_, options);
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

// One read of a batch: asks in parts, copies, asks again for what turned out wrong.
class DummyStore::GetCall {
 public:
  GetCall(DummyStore& store, const Wanted& wanted, std::string_view tenant)
      : store_(store), wanted_(wanted), tenant_(tenant) {
    for (size_t i = 0; i < wanted.keys.size(); ++i) results_.emplace_back(uint64_t{0});
  }

  std::vector<Result<uint64_t>> Run() {
    std::vector<size_t> pending;
    for (size_t i = 0; i < wanted_.keys.size(); ++i) {
      if (Status status = CheckKey(wanted_.keys[i]); !status) {
        results_[i] = std::move(status).error();
      } else {
        pending.push_back(i);
      }
    }
    for (int round = 0; round < kRoundsMax && !pending.empty(); ++round) {
      std::vector<size_t> again;
      for (size_t next = 0; next < pending.size();) {
        const size_t end = round == 0 ? EndOfPart(pending, next) : next + 1;
        Ask({pending.begin() + static_cast<ptrdiff_t>(next),
             pending.begin() + static_cast<ptrdiff_t>(end)},
            &again);
        next = end;
      }
      pending.swap(again);
    }
    return std::move(results_);
  }

 private:
  size_t EndOfPart(const std::vector<size_t>& pending, size_t begin) const {
    uint64_t bytes = 0;
    size_t unknown = 0;
    size_t end = begin;
    for (; end < pending.size() && end - begin < kItemsPerCallMax; ++end) {
      const uint64_t limit = wanted_.limits[pending[end]];
      if (limit == UINT64_MAX) {
        if (++unknown > kUnknownPerCallMax) break;
        continue;
      }
      bytes += limit;
      if (bytes > kBytesPerCallMax && end > begin) break;
    }
    return end;
  }

  void Ask(const std::vector<size_t>& items, std::vector<size_t>* again) {
    daemon_v1::AcquireRequest request;
    request.set_tenant(std::string(tenant_));
    request.set_allow_inline(wanted_.allow_inline);
    for (size_t i : items) {
      AddKey(wanted_.keys[i], request.mutable_keys());
      request.add_limits(wanted_.limits[i]);
      if (!wanted_.offsets.empty()) request.add_offsets(wanted_.offsets[i]);
    }
    daemon_v1::AcquireReply reply;
    start_ms_ = store_.runtime_->NowMs();
    const Status status = store_.link_->Acquire(request, &reply);
    if (!status.ok() || !Whole(reply, items.size())) {
      for (size_t i : items) {
        results_[i] =
            status.ok() ? TransportError("a malformed reply of the daemon") : status.error();
      }
      return;
    }
    const uint64_t session = request.session().high();
    int failed = 0;
    for (size_t k = 0; k < items.size(); ++k) {
      const size_t i = items[k];
      if (const int32_t code = reply.codes(static_cast<int>(k)); code != 0) {
        results_[i] = ItemError(code, failed < reply.errors_size() ? reply.errors(failed) : "");
        ++failed;
        if (results_[i].code() == ErrorCode::kBackPressure) again->push_back(i);
        continue;
      }
      results_[i] = Copy(i, reply, static_cast<int>(k), session);
      const ErrorCode code = results_[i].code();
      if (code == ErrorCode::kChecksum || code == ErrorCode::kStaleEpoch) again->push_back(i);
    }
    store_.link_->Release(reply.lease(), session);
  }

  static bool Whole(const daemon_v1::AcquireReply& reply, size_t items) {
    const int count = static_cast<int>(items);
    return reply.codes_size() == count && reply.sizes_size() == count &&
           reply.areas_size() == count && reply.offsets_size() == count &&
           reply.checksums_size() == count && reply.checked_size() == count;
  }

  Result<uint64_t> Copy(size_t i, const daemon_v1::AcquireReply& reply, int k, uint64_t session) {
    const uint64_t size = reply.sizes(k);
    const uint64_t offset = reply.offsets(k);
    std::shared_ptr<const MappedMemory> area;
    ConstBytes memory = BytesOf(reply.inline_bytes());
    if (reply.areas(k) != 0) {
      MC_TRY(area, store_.link_->Area(reply.areas(k), session));
      memory = area->bytes();
    }
    if (offset > memory.size() || size > memory.size() - offset) {
      return TransportError("the daemon named bytes outside of its memory");
    }
    const auto targets = wanted_.targets(i, size);
    if (!targets || TotalSize(*targets) < size) {
      return TooSmall(fmt::format("{}: needs {} bytes", wanted_.keys[i].substr(0, 128), size));
    }
    const uint64_t checksum = node::CopyOut(memory.subspan(offset, size), *targets);
    if (reply.checked(k)) {
      if (checksum == reply.checksums(k)) return size;
      return ChecksumMismatch(std::string(wanted_.keys[i].substr(0, 128)));
    }
    // Nothing but the lease says that these were still the right bytes.
    const uint64_t held_ms = store_.runtime_->NowMs() - start_ms_;
    if (held_ms < store_.link_->lease_ms() || reply.areas(k) == 0) return size;
    return ChecksumMismatch("the lease of the bytes ended while they were copied");
  }

  DummyStore& store_;
  const Wanted& wanted_;
  const std::string_view tenant_;
  uint64_t start_ms_ = 0;
  std::vector<Result<uint64_t>> results_;
};

std::vector<Result<uint64_t>> DummyStore::Read(const Wanted& wanted, std::string_view tenant) {
  base::Gate::Pass pass(gate_);
  if (!pass) return Refuse<uint64_t>(wanted.keys.size(), NotOpen());
  return GetCall(*this, wanted, tenant).Run();
}

std::vector<Result<uint64_t>> DummyStore::GetMany(std::span<const GetItem> items,
                                                  std::string_view tenant) {
  std::vector<std::string_view> keys;
  Wanted wanted;
  for (const GetItem& item : items) {
    keys.push_back(item.key);
    wanted.limits.push_back(TotalSize(item.targets));
  }
  wanted.keys = keys;
  wanted.targets = [&](size_t i, uint64_t) {
    return std::optional(
        std::vector<MutableBytes>(items[i].targets.begin(), items[i].targets.end()));
  };
  return Read(wanted, tenant);
}

std::vector<Result<uint64_t>> DummyStore::GetManyAllocated(std::span<const std::string_view> keys,
                                                           std::string_view tenant,
                                                           const AllocateTarget& allocate) {
  std::vector<std::optional<MutableBytes>> allocated(keys.size());
  Wanted wanted;
  wanted.keys = keys;
  wanted.limits.assign(keys.size(), UINT64_MAX);
  wanted.allow_inline = true;
  wanted.targets = [&](size_t i, uint64_t size) -> std::optional<std::vector<MutableBytes>> {
    if (!allocated[i] || allocated[i]->size() != size) allocated[i] = allocate(i, size);
    if (!allocated[i]) return std::nullopt;
    return std::vector<MutableBytes>{*allocated[i]};
  };
  return Read(wanted, tenant);
}

std::vector<Result<uint64_t>> DummyStore::GetRanges(std::span<const RangeItem> items,
                                                    std::string_view tenant) {
  std::vector<std::string_view> keys;
  Wanted wanted;
  for (const RangeItem& item : items) {
    keys.push_back(item.key);
    wanted.limits.push_back(item.target.size());
    wanted.offsets.push_back(item.offset);
  }
  wanted.keys = keys;
  wanted.targets = [&](size_t i, uint64_t) {
    return std::optional(std::vector<MutableBytes>{items[i].target});
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
  for (size_t i = 0; i < keys.size(); ++i) {
    if (Status status = CheckKey(keys[i]); !status) {
      take(i, status.error());
    } else {
      good.push_back(i);
    }
  }
  for (size_t begin = 0; begin < good.size(); begin += kItemsPerCallMax) {
    const size_t end = std::min(good.size(), begin + kItemsPerCallMax);
    std::vector<std::string_view> part;
    for (size_t k = begin; k < end; ++k) part.push_back(keys[good[k]]);
    daemon_v1::KeysRequest request = RequestFor(part, tenant);
    daemon_v1::CodesReply reply;
    Status status = send(request, &reply);
    if (status.ok() && reply.codes_size() != static_cast<int>(part.size())) {
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
  daemon_v1::KeysRequest request = RequestFor(std::span(&key, 1), tenant);
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
  // Before the gate: who unregisters holds this while it waits for those inside to leave.
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
  table->AddOwn(data, size);
  return Ok();
}

Status DummyStore::UnregisterBuffer(void* data) {
  base::MutexLock serial(register_mu_);
  std::optional<uint64_t> unused;
  {
    base::Gate::Pass pass(gate_);
    if (!pass) return NotOpen();
    base::MutexLock lock(mu_);
    bool found = false;
    for (auto it = registered_.rbegin(); it != registered_.rend() && !found; ++it) {
      found = it->second->Remove(data).ok();
      if (found && it->second->size() == 0) unused = it->first;
    }
    if (!found) {
      return NotFound(fmt::format("unregister_buffer: pointer {:#x} is not registered",
                                  reinterpret_cast<uintptr_t>(data)));
    }
    if (unused) registered_.erase(*unused);
  }
  // Calls that may still use the range came before; wait until each of them has left.
  const int side = gate_.Turn();
  const uint64_t limit_ms = runtime_->NowMs() + config_.rpc_timeout_ms;
  while (!gate_.Left(side) && runtime_->NowMs() < limit_ms) runtime_->Yield();
  if (unused) link_->UnregisterRegion(*unused);
  return Ok();
}

std::optional<std::pair<uint64_t, uint64_t>> DummyStore::RegionOf(const void* data,
                                                                  size_t size) const {
  if (!config_.find_shared) return std::nullopt;
  const auto shared = config_.find_shared(data, size);
  if (!shared) return std::nullopt;
  base::MutexLock lock(mu_);
  const auto found = registered_.find(shared->allocation);
  if (found == registered_.end() || !found->second->Contains(data, size)) return std::nullopt;
  return std::pair(shared->allocation, shared->offset);
}

bool DummyStore::IsRegistered(const void* data, size_t size) const {
  return RegionOf(data, size).has_value();
}

// --- What only a real store has ---------------------------------------------------------------

Result<RouteInfo> DummyStore::QueryRoute(std::string_view, std::string_view) {
  return RealOnly("query_route");
}
Status DummyStore::Heartbeat() { return RealOnly("heartbeat"); }
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
