#include "node/authority.h"

#include "node/outbox.h"

namespace mooncake::node {

ItemCode PublishRoute(Core& core, const KeyRef& ref, Publication publication, Version* version,
                      Charge* charge, bool* in_use) {
  Superseded superseded;
  const ExtentPin local = publication.local;
  const std::vector<Place> remote = publication.remote;
  Route mirrored{
      0,     publication.size, publication.checksum, publication.has_checksum, publication.soft_pin,
      remote};
  if (core.meter.any()) publication.published_ms = core.runtime.WallMs();
  const ItemCode code =
      core.routes.Publish(ref, std::move(publication), version, &superseded, charge);
  if (code != kItemOk) return code;
  // One that comes twice finds itself there: perhaps less of it, where the route was made anew from
  // what its owners said.
  const size_t copies = remote.size() + (local ? 1 : 0);
  const size_t left_over = superseded.remote.size() + (superseded.local ? 1 : 0);
  const bool refused = superseded.is_the_new_one && copies != 0 && left_over == copies;
  if (in_use != nullptr) *in_use = !refused;
  if (!superseded.is_the_new_one) {
    if (local) {
      core.extents.Commit(*local, *version);
      mirrored.replicas.insert(mirrored.replicas.begin(), local->place());
    }
    for (const Place& place : remote) core.outbox.Committed(place, *version);
    mirrored.version = *version;
    core.outbox.Mirror(ref, mirrored);
  }
  Release(core, superseded);
  return kItemOk;
}

ItemCode RemoveRoute(Core& core, const KeyRef& ref, uint64_t revision) {
  Superseded superseded;
  const ItemCode code = core.routes.Remove(ref, &superseded, revision);
  if (code != kItemOk) return code;
  core.outbox.Mirror(ref, {.version = superseded.version});
  Release(core, superseded);
  return kItemOk;
}

ItemCode DropReplica(Core& core, const KeyRef& ref, const Place& replica, Version* version) {
  const ItemCode code = core.routes.Check(ref, replica, true, version);
  if (code != kItemOk) return code;
  Route left;
  if (core.routes.Lookup(ref, &left, nullptr) != kItemOk) left = {.version = *version};
  core.outbox.Mirror(ref, left);
  return kItemOk;
}

bool EvictAged(Core& core, const TenantAccount& account, const Age& age) {
  Superseded superseded;
  const auto gone = core.routes.EvictAged(account, age, &superseded);
  if (!gone) return false;
  const KeyRef ref{gone->ref.hash, gone->ref.scope, gone->key};
  core.outbox.Mirror(ref, {.version = superseded.version});
  const uint64_t copies = superseded.remote.size() + (superseded.local ? 1 : 0);
  core.metrics.GetCounter("eviction_total", {{"result", "ok"}}).Add(copies);
  core.metrics.GetCounter("eviction_bytes_total", {})
      .Add(copies * allocator::ExtentAllocator::RoundUp(gone->route.size));
  core.meter.counters().evicted.Increment();
  Release(core, superseded);
  return true;
}

uint64_t RemoveScopeRoutes(Core& core, ScopeIndex scope) {
  return core.routes.RemoveScope(scope, [&core](const KeyRef& ref, const Superseded& superseded) {
    core.outbox.Mirror(ref, {.version = superseded.version});
    Release(core, superseded);
  });
}

namespace {

bool ServesItsSlots(Core& core, const routing::ClusterView& view) {
  const routing::NodeIndex self = view.Find(core.membership.self());
  for (routing::Slot slot = 0; slot < view.slots().count(); ++slot) {
    const auto ranks = view.Ranks(slot);
    if (!ranks.empty() && ranks[0] == self && !core.routes.Serves(slot)) return false;
  }
  return true;
}

}  // namespace

uint64_t RemoveScopeHere(Core& core, ScopeIndex scope, uint64_t* removed) {
  const ViewPtr view = core.view();
  const bool ready = ServesItsSlots(core, *view);
  *removed += RemoveScopeRoutes(core, scope);
  const bool stayed = ServesItsSlots(core, *view) && core.view()->revision() == view->revision();
  return ready && stayed ? view->revision() : 0;
}

std::optional<Publication> PublicationOf(Core& core, const KeyRef& ref, const Route& route) {
  Publication publication;
  publication.size = route.size;
  publication.checksum = route.checksum;
  publication.has_checksum = route.has_checksum;
  publication.soft_pin = route.soft_pin;
  for (const Place& place : route.replicas) {
    if (place.owner != kSelf) {
      publication.remote.push_back(place);
      continue;
    }
    publication.local = core.extents.Find(place.segment, place.offset, place.generation);
    const bool right = publication.local && publication.local->ref().hash == ref.hash &&
                       publication.local->ref().key == ref.key &&
                       publication.local->size() == route.size;
    if (!right) return std::nullopt;
  }
  if (!publication.local && publication.remote.empty()) return std::nullopt;
  return publication;
}

}  // namespace mooncake::node
