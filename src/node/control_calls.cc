#include "node/control_calls.h"

#include <unistd.h>

#include <algorithm>

#include "mooncake/store.h"
#include "node/authority.h"
#include "node/migration_worker.h"
#include "node/outbox.h"
#include "node/quota.h"

namespace mooncake::node {

namespace {

// Reads the scope and keys that many requests share.
template <typename Request>
std::optional<std::vector<KeyRef>> KeysOf(Core& core, const Request& request,
                                          std::vector<std::string_view>* keys) {
  const auto scope = core.scopes.Look(ReadScope(request.scope()));
  if (!scope || !ReadKeys(request.keys(), keys)) return std::nullopt;
  std::vector<KeyRef> refs;
  refs.reserve(keys->size());
  for (std::string_view key : *keys) refs.push_back(MakeKeyRef(*scope, key));
  return refs;
}

constexpr uint64_t kSyncMs = 2'000;
constexpr uint64_t kMigrationLimitMs = 600'000;

}  // namespace

bool ServePing(Core& core, const v1::PingRequest& request, bool may_block, v1::PingReply* reply) {
  const uint64_t wanted = request.origin().revision();
  if (wanted > core.view()->revision()) {
    if (!may_block) return false;
    core.membership.RefreshTo(wanted, core.runtime.NowMs() + kSyncMs);
  }
  reply->set_node(core.membership.self_name());
  reply->set_revision(core.view()->revision());
  reply->set_host(core.membership.record().host);
  reply->set_pid(static_cast<uint64_t>(getpid()));
  reply->set_instance(core.membership.instance());
  reply->set_leaving(core.gate.closed());
  return true;
}

void ServeExist(Core& core, const v1::ExistRequest& request, v1::ExistReply* reply, bool* valid) {
  std::vector<std::string_view> keys;
  const auto refs = KeysOf(core, request, &keys);
  *valid = refs.has_value();
  if (!*valid) return;
  std::string& present = *reply->mutable_present();
  present.reserve(refs->size());
  for (const KeyRef& ref : *refs) {
    const ItemCode code = core.routes.Lookup(ref, nullptr, nullptr);
    present.push_back(PresenceOf(core.routes.Explain(ref, code)));
  }
  reply->set_revision(core.view()->revision());
}

void ServeRoute(Core& core, const v1::RouteRequest& request, v1::RouteReply* reply, bool* valid) {
  std::vector<std::string_view> keys;
  const auto refs = KeysOf(core, request, &keys);
  *valid = refs.has_value();
  if (!*valid) return;
  for (const KeyRef& ref : *refs) {
    Route route;
    const ItemCode code = core.routes.Explain(ref, core.routes.Lookup(ref, &route, nullptr));
    reply->add_codes(code);
    if (code == kItemOk) WriteRoute({}, route, core.names, reply->add_routes());
  }
  reply->set_revision(core.view()->revision());
}

namespace {

// The routes of a request and, where the tenant has a quota, what was admitted for each.
struct Publishing {
  std::vector<Route> routes;
  std::vector<KeyRef> refs;
  std::vector<Charge> charges;
  std::vector<ItemCode> codes;
};

bool ReadPublishing(Core& core, const v1::PublishRequest& request, ScopeTable::Entry scope,
                    Publishing* out) {
  for (const v1::Route& wire : request.routes()) {
    std::optional<Route> route = ReadRoute(wire, core.names);
    if (!route || wire.key().empty() || wire.key().size() > kKeySizeMax) return false;
    out->routes.push_back(*std::move(route));
    out->refs.push_back(MakeKeyRef(scope, wire.key()));
  }
  out->charges.resize(out->refs.size());
  out->codes.resize(out->refs.size(), kItemOk);
  return true;
}

// What the writer had charged before it wrote the copies, or, where it had not or another node
// answered for the key then, what can be admitted now.
void ChargePublishing(Core& core, const v1::PublishRequest& request, Publishing* out) {
  if (out->refs.empty()) return;
  TenantAccount* account = core.meter.Find(out->refs[0].scope);
  const auto writer = core.names.IndexOf(request.origin().node());
  if (account == nullptr || !writer) return;
  Admission admission{.may_block = true, .deadline_ms = core.runtime.NowMs() + kSyncMs};
  for (size_t i = 0; i < out->refs.size(); ++i) {
    out->charges[i] = account->Take(*writer, out->refs[i]);
    if (out->charges[i]) continue;
    const Route& route = out->routes[i];
    out->codes[i] =
        Admit(core, {out->refs[i], route.size, route.replicas.size(), request.if_absent()},
              admission, &out->charges[i]);
  }
}

}  // namespace

bool ServePublish(Core& core, const v1::PublishRequest& request, bool may_block,
                  v1::PublishReply* reply, bool* valid) {
  const auto scope = core.scopes.Intern(ReadScope(request.scope()));
  *valid = scope && request.routes_size() <= static_cast<int>(kItemsPerMessageMax);
  if (!*valid) return true;
  // A quota may have to be asked about, and what was done by then would be done twice.
  if (!may_block && HasQuota(core, scope->index)) return false;
  Publishing publishing;
  *valid = ReadPublishing(core, request, *scope, &publishing);
  if (!*valid) return true;
  ChargePublishing(core, request, &publishing);
  for (size_t i = 0; i < publishing.refs.size(); ++i) {
    const KeyRef& ref = publishing.refs[i];
    Version version = 0;
    bool in_use = false;
    ItemCode code = publishing.codes[i];
    auto publication = code == kItemOk ? PublicationOf(core, ref, publishing.routes[i])
                                       : std::optional<Publication>();
    if (publication) {
      publication->if_absent = request.if_absent();
      publication->revision = request.origin().revision();
      if (request.expect_version()) publication->expected = publishing.routes[i].version;
      if (request.kept_size() == request.routes_size()) {
        const std::vector<Place>& places = publishing.routes[i].replicas;
        const auto kept = std::min<size_t>(request.kept(static_cast<int>(i)), places.size());
        publication->kept.assign(places.end() - static_cast<ptrdiff_t>(kept), places.end());
      }
      code = PublishRoute(core, ref, *std::move(publication), &version, &publishing.charges[i],
                          &in_use);
    } else if (code == kItemOk) {
      code = CodeOf(ErrorCode::kNotFound);
    }
    reply->add_codes(code);
    reply->add_versions(version);
    reply->add_in_use(in_use);
  }
  reply->set_revision(core.view()->revision());
  return true;
}

void ServeRemove(Core& core, const v1::RemoveRequest& request, v1::RemoveReply* reply,
                 bool* valid) {
  std::vector<std::string_view> keys;
  const auto refs = KeysOf(core, request, &keys);
  *valid = refs.has_value();
  if (!*valid) return;
  const uint64_t revision = request.origin().revision();
  for (const KeyRef& ref : *refs) reply->add_codes(RemoveRoute(core, ref, revision));
  reply->set_revision(core.view()->revision());
}

void ServeRemoveAll(Core& core, const v1::RemoveAllRequest& request, v1::RemoveAllReply* reply,
                    bool* valid) {
  const auto scope = core.scopes.Look(ReadScope(request.scope()));
  *valid = scope.has_value();
  if (!*valid) return;
  uint64_t removed = 0;
  reply->set_revision(RemoveScopeHere(core, scope->index, &removed));
  reply->set_removed(removed);
}

void ServeNotice(Core& core, const v1::NoticeRequest& request, v1::NoticeReply* reply,
                 bool* valid) {
  (void)reply;
  *valid = request.versions_size() == request.committed_size();
  // Of a former incarnation: nothing here is meant.
  if (!*valid || request.owner() != core.membership.self_name()) return;
  for (int i = 0; i < request.committed_size(); ++i) {
    const v1::Replica& place = request.committed(i);
    if (ExtentPin pin = core.extents.Find(place.segment(), place.offset(), place.generation())) {
      core.extents.Commit(*pin, request.versions(i));
    }
  }
  for (const v1::Replica& place : request.abandoned()) {
    if (ExtentPin pin = core.extents.Find(place.segment(), place.offset(), place.generation())) {
      pin->Abandon(core.runtime.NowMs());
    }
  }
  for (const v1::Replica& place : request.retired()) {
    if (ExtentPin pin = core.extents.Find(place.segment(), place.offset(), place.generation())) {
      core.extents.Retire(*pin);
    }
  }
}

void ServeCheck(Core& core, const v1::CheckRequest& request, v1::CheckReply* reply, bool* valid) {
  const std::vector<ScopeTable::Entry> scopes = ReadScopes(request.scopes(), core.scopes);
  for (const v1::Route& wire : request.extents()) {
    KeyedRoute keyed;
    *valid = ReadKeyedRoute(wire, scopes, core.names, &keyed) && keyed.route.replicas.size() == 1;
    if (!*valid) return;
    Version version = 0;
    const Place& extent = keyed.route.replicas[0];
    reply->add_codes(request.drop() ? DropReplica(core, keyed.ref, extent, &version)
                                    : core.routes.Check(keyed.ref, extent, false, &version));
    reply->add_versions(version);
    reply->add_eras(core.routes.EraOf(core.routes.SlotOf(keyed.ref)));
  }
  reply->set_revision(core.view()->revision());
}

namespace {

// The slots of a request as a set; empty: a bad slot.
std::vector<bool> SlotSet(const Core& core,
                          const google::protobuf::RepeatedField<uint32_t>& slots) {
  std::vector<bool> set(core.routes.slots().count());
  for (uint32_t slot : slots) {
    if (slot >= set.size()) return {};
    set[slot] = true;
  }
  return set;
}

// Cursors say where a page begins: the shard in the upper bits, and in it the first entry in an
// order that stays the same from page to page. 0: the beginning.
constexpr int kPullShardBits = 8;
constexpr int kInventoryShardBits = 6;
static_assert(RouteTable::kShards == 1 << kPullShardBits);
static_assert(ExtentStore::kIndexShards == 1 << kInventoryShardBits);

// A shard's routes differ in all bits of the hash but those that make the shard.
uint64_t PullOrder(const KeyedRoute& keyed) {
  constexpr uint64_t kLow = (uint64_t{1} << 48) - 1;
  return (keyed.ref.hash & kLow) | (keyed.ref.hash >> 56 << 48);
}

uint64_t InventoryOrder(const ExtentPin& extent) { return extent->place().generation; }

// Fills the page of a reply, shard after shard, until it is full.
class PageWriter {
 public:
  // `bytes`: what the reply holds already.
  PageWriter(uint64_t cursor, int shard_bits, uint64_t bytes = 0)
      : order_bits_(64 - shard_bits),
        shard_(cursor >> order_bits_),
        order_(cursor & ((uint64_t{1} << order_bits_) - 1)),
        bytes_(bytes) {}

  size_t shard() const { return shard_; }
  bool full() const { return IsFull(items_, bytes_); }
  // The cursor of the next page; 0: this was the last.
  uint64_t next(size_t shards) const {
    return shard_ < shards ? (uint64_t{shard_} << order_bits_) | order_ : 0;
  }

  // What is left of the shard, or as much of it as its bytes allow. Their number alone cuts
  // between shards only, as each page looks through the whole shard. `order` is unique in a shard,
  // or the entries that share it are few; `write` returns the bytes that an entry takes.
  template <typename Entry, typename Order, typename Write>
  void WriteShard(std::span<const Entry> entries, const Order& order, const Write& write) {
    std::vector<std::pair<uint64_t, const Entry*>> sorted;
    for (const Entry& entry : entries) {
      if (order(entry) >= order_) sorted.emplace_back(order(entry), &entry);
    }
    std::sort(sorted.begin(), sorted.end());
    for (const auto& [at, entry] : sorted) {
      if (at != order_ && bytes_ >= kKeyBytesPerMessageMax) {
        order_ = at;
        return;
      }
      bytes_ += write(*entry);
      ++items_;
      order_ = at;
    }
    ++shard_;
    order_ = 0;
  }

 private:
  const int order_bits_;
  size_t shard_;
  uint64_t order_;
  size_t items_ = 0;
  uint64_t bytes_;
};

}  // namespace

void ServePull(Core& core, const v1::PullRequest& request, v1::PullReply* reply, bool* valid) {
  const std::vector<bool> wanted = SlotSet(core, request.slots());
  *valid = !wanted.empty();
  if (!*valid) return;
  if (request.cursor() == 0) {
    const std::vector<routing::Slot> slots(request.slots().begin(), request.slots().end());
    const uint64_t revision = request.origin().revision();
    const Fenced fenced = core.routes.Fence(slots, revision, core.runtime.NowMs());
    for (const Truth& truth : fenced.served) {
      reply->add_served(truth.slot);
      reply->add_upto(truth.upto);
      reply->add_eras(truth.era);
      if (truth.passed_on) reply->add_passed_on(truth.slot);
      if (truth.unsure) reply->add_unsure(truth.slot);
    }
    reply->mutable_kept()->Add(fenced.kept.begin(), fenced.kept.end());
    // Others count what is in these slots from now on.
    if (!fenced.served.empty()) (void)core.meter.BeginCount();
    // Somebody knows a newer view. Or an older one: then the slots have to come back.
    core.membership.ReapplySoon();
  }
  ScopeColumn scopes(core.scopes, reply->mutable_scopes());
  // The truths about very many slots fill a message by themselves.
  PageWriter page(request.cursor(), kPullShardBits, reply->ByteSizeLong());
  do {
    const std::vector<KeyedRoute> routes =
        core.routes.Export(page.shard(), [&](routing::Slot slot) { return wanted[slot]; });
    page.WriteShard<KeyedRoute>(routes, PullOrder, [&](const KeyedRoute& keyed) {
      return WriteKeyedRoute(keyed, scopes, core.names, reply->add_routes());
    });
  } while (page.shard() < RouteTable::kShards && !page.full());
  reply->set_next_cursor(page.next(RouteTable::kShards));
}

void ServeInventory(Core& core, const v1::InventoryRequest& request, v1::InventoryReply* reply,
                    bool* valid) {
  const std::vector<bool> wanted = SlotSet(core, request.slots());
  *valid = !wanted.empty();
  if (!*valid) return;
  ScopeColumn scopes(core.scopes, reply->mutable_scopes());
  PageWriter page(request.cursor(), kInventoryShardBits);
  while (page.shard() < ExtentStore::kIndexShards && !page.full()) {
    std::vector<ExtentPin> extents = core.extents.ShardExtents(page.shard());
    std::erase_if(extents, [&](const ExtentPin& extent) {
      return extent->state() != ExtentState::kLive || !wanted[core.routes.SlotOf(extent->ref())];
    });
    page.WriteShard<ExtentPin>(extents, InventoryOrder, [&](const ExtentPin& extent) {
      KeyedRoute keyed;
      keyed.ref = extent->ref();
      keyed.key = std::string(keyed.ref.key);
      keyed.route = {extent->version(),      extent->size(),           extent->checksum(),
                     extent->has_checksum(), extent->wants_soft_pin(), {extent->place()}};
      return WriteKeyedRoute(keyed, scopes, core.names, reply->add_routes());
    });
  }
  reply->set_next_cursor(page.next(ExtentStore::kIndexShards));
}

void ServeMirror(Core& core, const v1::MirrorRequest& request, v1::MirrorReply* reply,
                 bool* valid) {
  (void)reply;
  const std::vector<ScopeTable::Entry> scopes = ReadScopes(request.scopes(), core.scopes);
  for (const v1::Route& wire : request.routes()) {
    KeyedRoute keyed;
    *valid = ReadKeyedRoute(wire, scopes, core.names, &keyed);
    if (!*valid) return;
    if (keyed.route.replicas.empty()) {
      core.routes.ForgetMirror(keyed.ref, keyed.route.version);
    } else {
      // It was published a moment ago.
      const uint64_t now_ms = core.meter.any() ? core.runtime.WallMs() : 0;
      core.routes.Import(keyed.ref, keyed.route, true, request.origin().revision(), now_ms);
    }
  }
}

void ServeMigrate(Core& core, const v1::MigrateRequest& request, v1::MigrateReply* reply,
                  bool* valid) {
  *valid = request.target_segments_size() <= static_cast<int>(kMigrationTargetsMax);
  if (!*valid) return;
  Status status = Ok();
  if (request.execution() != 0) {
    auto execution = core.migrations.Get(request.execution());
    reply->set_execution(request.execution());
    reply->set_finished(execution.ok() && execution->finished);
    if (execution.ok()) status = std::move(execution->status);
    if (!execution.ok()) status = std::move(execution).error();
  } else {
    const MigrationOrder order{
        ReadScope(request.scope()),
        request.key(),
        request.move(),
        request.source_segment(),
        {request.target_segments().begin(), request.target_segments().end()}};
    const uint64_t limit_ms = std::min(request.limit_ms(), kMigrationLimitMs);
    auto id = core.migrations.Submit(order, core.runtime.NowMs() + limit_ms);
    if (id.ok()) reply->set_execution(*id);
    if (!id.ok()) status = std::move(id).error();
  }
  reply->set_code(CodeOf(status.code()));
  if (!status.ok()) reply->set_reason(status.error().context);
}

}  // namespace mooncake::node
