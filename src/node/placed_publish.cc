// The part of PlacedWrite that makes written copies a value: at the key's authority.
#include "base/checksum.h"
#include "node/authority.h"
#include "node/outbox.h"
#include "node/placed_write.h"
#include "node/quota.h"
#include "obs/phase_span.h"

namespace mooncake::node {

void PlacedWrite::CountPublished(const std::vector<uint32_t>& items,
                                 const std::vector<Status>& statuses, uint64_t ns) {
  if (items.empty()) return;
  uint64_t counts[3] = {};  // ok, conflict, error.
  for (uint32_t i : items) {
    ++counts[statuses[i].ok() ? 0 : statuses[i].code() == ErrorCode::kConflict ? 1 : 2];
  }
  constexpr const char* kResults[] = {"ok", "conflict", "error"};
  for (size_t result = 0; result < std::size(counts); ++result) {
    if (counts[result] == 0) continue;
    const Labels labels{{"result", kResults[result]}};
    core_.metrics.GetCounter("replication_publish_total", labels).Add(counts[result]);
    core_.metrics.GetHistogram("replication_publish_duration_seconds", labels).ObserveNs(ns);
  }
}

Route PlacedWrite::RouteOf(uint32_t i) const {
  const Copies& copies = copies_[i];
  Route route{0, items_[i].size, copies.checksum, true, soft_pin(), copies.places};
  if (const Relocation* relocation = items_[i].relocation) {
    route.version = relocation->version;
    route.replicas.insert(route.replicas.end(), relocation->keep.begin(), relocation->keep.end());
    if (copies.places.empty()) route.checksum = base::Checksum(items_[i].parts);
  }
  return route;
}

// The authority tells the owners too, but it may die before its notices have left, and then only
// what its owners know to be live is found again.
void PlacedWrite::Published(uint32_t i, const v1::PublishReply& reply, int item) {
  if (quota_) quota_->Published(i);
  const Version version = reply.versions(item);
  const bool told = reply.in_use_size() == reply.codes_size();
  if (told && !reply.in_use(item)) return GiveBack(i);
  // With if_absent the version may be that of another value: the authority's notice decides.
  if (!told && options_.if_absent) return;
  for (const Place& place : RouteOf(i).replicas) {
    if (place.owner != kSelf) {
      core_.outbox.Committed(place, version);
    } else if (ExtentPin own = core_.extents.Find(place.segment, place.offset, place.generation)) {
      core_.extents.Commit(*own, version);
    }
  }
}

// An earlier publish without an answer may have been done, and refused the next time as it was:
// then its places are what the route names.
void PlacedWrite::Refuse(uint32_t i) { copies_[i].unanswered ? Abandon(i) : GiveBack(i); }

// The outcome is unknown: the copies stay reserved until their owners have asked the authority.
void PlacedWrite::Abandon(uint32_t i) {
  Copies& copies = copies_[i];
  if (copies.own) copies.own->Abandon(core_.runtime.NowMs());
  for (const Place& place : copies.places) {
    if (place.owner != kSelf) core_.outbox.Abandoned(place);
  }
}

bool PlacedWrite::PublishHere(uint32_t i, std::vector<Status>* statuses) {
  const WriteItem& item = items_[i];
  if (!core_.routes.Serves(core_.routes.SlotOf(item.ref))) return false;
  auto publication = PublicationOf(core_, item.ref, RouteOf(i));
  if (!publication) {
    Refuse(i);
    (*statuses)[i] = NotFound(std::string(item.ref.key.substr(0, 128)));
    return true;
  }
  publication->if_absent = options_.if_absent;
  if (item.relocation != nullptr) {
    publication->expected = item.relocation->version;
    publication->kept = item.relocation->keep;
  }
  const size_t copies = publication->remote.size() + (publication->local ? 1 : 0);
  Version version = 0;
  Charge charge;
  ItemCode code = ChargeHere(i, copies, &charge);
  if (code == kItemOk) {
    code = PublishRoute(core_, item.ref, *std::move(publication), &version, &charge);
  }
  if (code == kItemRetryLater || code == kItemWrongAuthority) return false;
  if (code != kItemOk) {
    Refuse(i);
    (*statuses)[i] = PublishError(code, i);
  }
  return true;
}

ItemCode PlacedWrite::ChargeHere(uint32_t i, size_t copies, Charge* charge) {
  const WriteItem& item = items_[i];
  if (quota_) *charge = quota_->TakeOwn(i);
  if (*charge || !HasQuota(core_, item.ref.scope)) return kItemOk;
  Admission admission{.may_block = true, .patient = true, .deadline_ms = options_.deadline_ms};
  return Admit(core_, {item.ref, item.size, copies, options_.if_absent}, admission, charge);
}

Error PlacedWrite::PublishError(ItemCode code, uint32_t i) const {
  const WriteItem& item = items_[i];
  // Of a value that is moved it can also mean that another one was faster.
  const bool refused = code == CodeOf(ErrorCode::kConflict) && item.relocation == nullptr;
  if (refused) return OverQuota(item.ref, item.size);
  return {ErrorCodeOf(code), std::string(item.ref.key.substr(0, 128))};
}

void PlacedWrite::Publish(std::vector<uint32_t> pending, std::vector<Status>* statuses) {
  if (!IsWanted(options_)) {
    for (uint32_t i : pending) {
      GiveBack(i);
      (*statuses)[i] = NotWanted();
    }
    return;
  }
  obs::PhaseSpan span(core_.runtime, "control.route_publish");
  span.items(pending.size());
  std::vector<KeyRef> refs;
  for (const WriteItem& item : items_) refs.push_back(item.ref);
  while (true) {
    std::erase_if(pending, [&](uint32_t i) { return PublishHere(i, statuses); });
    if (pending.empty()) return;
    std::vector<uint32_t> again;
    std::vector<AuthorityGroup> groups = rounds_.Group(refs, pending, {}, &again);
    PublishRemote(groups, statuses, &again);
    pending.swap(again);
    if (pending.empty()) return;
    if (!rounds_.Again()) break;
  }
  for (uint32_t i : pending) {
    Abandon(i);
    (*statuses)[i] = rounds_.last_error();
  }
}

void PlacedWrite::PublishRemote(std::vector<AuthorityGroup>& groups, std::vector<Status>* statuses,
                                std::vector<uint32_t>* again) {
  std::vector<const routing::ViewNode*> peers;
  std::vector<v1::PublishRequest> requests;
  for (AuthorityGroup& group : groups) {
    peers.push_back(&rounds_.view()->node(group.node));
    v1::PublishRequest& request = requests.emplace_back();
    rounds_.FillChange(group, request.mutable_origin());
    WriteScope(core_.scopes.ScopeOf(items_[group.items[0]].ref.scope), request.mutable_scope());
    request.set_if_absent(options_.if_absent);
    request.set_expect_version(items_[group.items[0]].relocation != nullptr);
    for (uint32_t i : group.items) {
      WriteRoute(items_[i].ref.key, RouteOf(i), core_.names, request.add_routes());
      if (const Relocation* move = items_[i].relocation) {
        request.add_kept(static_cast<uint32_t>(move->keep.size()));
      }
    }
  }
  auto replies = core_.peers.AskMany<v1::PublishReply, v1::PublishRequest>(
      peers, MessageType::kPublish, requests, options_.deadline_ms);
  for (size_t g = 0; g < groups.size(); ++g) {
    const Result<v1::PublishReply>& reply = replies[g];
    const bool whole = reply.ok() &&
                       reply->codes_size() == static_cast<int>(groups[g].items.size()) &&
                       reply->versions_size() == reply->codes_size();
    const Error* const error = reply.ok() ? nullptr : &reply.error();
    if (!rounds_.Answered(groups[g], error, whole, again)) {
      for (uint32_t i : groups[g].items) copies_[i].unanswered = true;
      continue;
    }
    for (size_t k = 0; k < groups[g].items.size(); ++k) {
      const uint32_t i = groups[g].items[k];
      const ItemCode code = reply->codes(static_cast<int>(k));
      if (code == kItemOk) {
        Published(i, *reply, static_cast<int>(k));
      } else if (code == kItemRetryLater || code == kItemWrongAuthority) {
        rounds_.NoteCode(code, reply->revision());
        again->push_back(i);
      } else {
        Refuse(i);
        (*statuses)[i] = PublishError(code, i);
      }
    }
  }
}

}  // namespace mooncake::node
