#include "node/placed_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "node/authority.h"
#include "node/evictor.h"
#include "node/outbox.h"
#include "node/payload.h"
#include "obs/phase_span.h"

namespace mooncake::node {

namespace {

constexpr int kPassesMax = 128;  // Above the number of candidates of any placement.

class WriteObserver : public CallObserver {
 public:
  void OnSend(size_t piece, ConstBytes chunk) override { plan.OnSend(piece, chunk); }
  void OnRestart() override { plan.Restart(); }
  Result<std::span<const MutableBytes>> OnReply(std::string_view message,
                                                uint64_t payload_size) override {
    const bool parsed = reply.ParseFromArray(message.data(), static_cast<int>(message.size()));
    if (payload_size != 0 || !parsed) return TransportError("malformed reply to a write");
    return std::span<const MutableBytes>();
  }

  GatherPlan plan;
  v1::WriteReply reply;
};

}  // namespace

PlacedWrite::PlacedWrite(Core& core, std::span<const WriteItem> items, const WriteOptions& options,
                         bool authority_last)
    : core_(core),
      items_(items),
      options_(options),
      authority_last_(authority_last),
      rounds_(core, options.deadline_ms),
      view_(rounds_.view()),
      copies_(items.size()),
      last_error_(NoRoom(core, *view_)) {}

bool PlacedWrite::soft_pin() const {
  return options_.replicate != nullptr && options_.replicate->with_soft_pin;
}

// The candidates of each item; refusals get their status. Returns the items to write.
std::vector<uint32_t> PlacedWrite::PlaceAll(const std::vector<uint32_t>& indices,
                                            std::vector<Status>* statuses) {
  obs::PhaseSpan span(core_.runtime, "control.placement_rank");
  span.items(indices.size());
  std::vector<uint32_t> writable;
  RoomPlan rooms(core_);
  for (uint32_t i : indices) {
    Copies& copies = copies_[i];
    const Relocation* const relocation = items_[i].relocation;
    copies.placement =
        relocation != nullptr
            ? PlaceRelocation(core_, *view_, *relocation)
            : PlaceKey(core_, *view_, items_[i], options_.replicate, authority_last_, &rooms);
    if (copies.placement.refused.code != ErrorCode::kOk) {
      if (copies.placement.refused.code == ErrorCode::kNotFound) homeless_.push_back(i);
      (*statuses)[i] = copies.placement.refused;
    } else {
      writable.push_back(i);
    }
  }
  return writable;
}

std::vector<uint32_t> PlacedWrite::ReserveQuota(std::vector<uint32_t> writable,
                                                std::vector<Status>* statuses) {
  // What is moved evicts nothing; that it does not grow is seen to when it is published.
  if (writable.empty() || items_[writable[0]].relocation != nullptr) return writable;
  // A request that moves nothing is of one scope.
  if (!HasQuota(core_, items_[writable[0]].ref.scope)) return writable;
  std::vector<uint32_t> copies(items_.size());
  for (uint32_t i : writable) {
    // As many as there are owners, and no more.
    const Placement& placement = copies_[i].placement;
    copies[i] =
        std::min<uint32_t>(placement.copies, static_cast<uint32_t>(placement.candidates.size()));
  }
  quota_ = std::make_unique<QuotaReserve>(core_, items_, options_);
  return quota_->Reserve(std::move(writable), copies, statuses);
}

void PlacedWrite::Run(const std::vector<uint32_t>& indices, std::vector<Status>* statuses) {
  const std::vector<uint32_t> writable = ReserveQuota(PlaceAll(indices, statuses), statuses);
  WriteCopies(writable);
  std::vector<uint32_t> written;
  for (uint32_t i : writable) {
    Copies& copies = copies_[i];
    const bool written_somewhere = !copies.places.empty() || copies.placement.copies == 0;
    if (!written_somewhere || !HardOnesHold(copies)) {
      GiveBack(i);
      Error error = last_error_;
      bool homeless = error.code != ErrorCode::kNoSpace || copies.placement.candidates.empty();
      if (error.code == ErrorCode::kNoSpace) {
        const Error inactive = InactiveChoice(core_, *view_, copies.placement);
        if (inactive.code != ErrorCode::kOk) error = inactive;
        homeless = homeless || inactive.code != ErrorCode::kOk;
      }
      if (homeless) homeless_.push_back(i);
      error.context = fmt::format("{}: {} bytes: {}", items_[i].ref.key.substr(0, 128),
                                  items_[i].size, error.context);
      if (error.code == ErrorCode::kNoSpace && !FitsAnywhere(core_, *view_, items_[i].size)) {
        error.reason = ErrorReason::kTooLarge;
      }
      (*statuses)[i] = std::move(error);
      continue;
    }
    CountSkipped(copies);
    if (copies.places.size() < copies.placement.copies) {
      core_.metrics.GetCounter("replica_shortfall_total", {}).Increment();
    }
    written.push_back(i);
  }
  const uint64_t started_ns = core_.runtime.NowNs();
  const std::vector<uint32_t> published = written;
  Publish(std::move(written), statuses);
  CountPublished(published, *statuses, core_.runtime.NowNs() - started_ns);
}

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

bool PlacedWrite::Holds(const Copies& copies, const Candidate& candidate) const {
  const auto owner = candidate.node == routing::kNoNode
                         ? kSelf
                         : core_.names.IndexOf(view_->node(candidate.node).lease.id.ToString());
  return std::any_of(copies.places.begin(), copies.places.end(),
                     [&](const Place& place) { return place.owner == owner; });
}

bool PlacedWrite::HardOnesHold(const Copies& copies) const {
  const Placement& placement = copies.placement;
  size_t held = 0;
  for (uint32_t c = 0; c < placement.hard; ++c) held += Holds(copies, placement.candidates[c]);
  return held >= std::min(placement.copies, placement.hard);
}

// Owners that were asked for, tried, and have no copy now.
void PlacedWrite::CountSkipped(const Copies& copies) const {
  uint64_t skipped = 0;
  for (size_t c = 0; c < std::min<size_t>(copies.next, copies.placement.preferred); ++c) {
    skipped += !Holds(copies, copies.placement.candidates[c]);
  }
  if (skipped == 0) return;
  core_.metrics
      .GetCounter("preferred_segment_skip_total", {{"source", "request"}, {"reason", "no_copy"}})
      .Add(skipped);
}

std::vector<std::string> PlacedWrite::HostsOf(const Copies& copies) const {
  std::vector<std::string> hosts;
  if (copies.placement.copies <= 1) return hosts;  // Nothing to keep apart.
  for (const Place& place : copies.places) {
    const routing::NodeIndex node = view_->FindName(core_.names.NameOf(place.owner));
    if (node != routing::kNoNode) hosts.push_back(HostOf(core_, *view_, node));
  }
  return hosts;
}

const Candidate& PlacedWrite::NextCandidate(Copies& copies, std::vector<std::string>* hosts) {
  std::vector<Candidate>& candidates = copies.placement.candidates;
  const size_t first = copies.next++;
  if (copies.placement.copies <= 1) return candidates[first];
  const auto host_of = [&](const Candidate& candidate) {
    return HostOf(core_, *view_, candidate.node);
  };
  if (first >= copies.placement.preferred) {
    const auto begin = candidates.begin() + static_cast<ptrdiff_t>(first);
    const auto apart = std::find_if(begin, candidates.end(), [&](const Candidate& candidate) {
      return std::find(hosts->begin(), hosts->end(), host_of(candidate)) == hosts->end();
    });
    if (apart != candidates.end()) std::rotate(begin, apart, apart + 1);
  }
  hosts->push_back(host_of(candidates[first]));
  return candidates[first];
}

void PlacedWrite::WriteCopies(const std::vector<uint32_t>& indices) {
  for (int pass = 0; pass < kPassesMax; ++pass) {
    std::map<std::tuple<routing::NodeIndex, std::string, ScopeIndex>, Target> targets;
    for (uint32_t i : indices) {
      Copies& copies = copies_[i];
      size_t missing =
          copies.placement.copies - std::min<size_t>(copies.placement.copies, copies.places.size());
      std::vector<std::string> hosts = HostsOf(copies);
      while (missing > 0 && copies.next < copies.placement.candidates.size()) {
        const Candidate& candidate = NextCandidate(copies, &hosts);
        if (candidate.node == routing::kNoNode) {
          if (WriteOwn(i, candidate.segment)) --missing;
          continue;
        }
        Target& target = targets[{candidate.node, candidate.segment, items_[i].ref.scope}];
        target.node = candidate.node;
        target.segment = candidate.segment;
        target.items.push_back(i);
        --missing;
      }
    }
    if (targets.empty()) return;
    std::vector<Target> cut;
    for (auto& [key, target] : targets) {
      Target part{target.node, target.segment, {}};
      uint64_t bytes = 0;
      uint64_t key_bytes = 0;
      for (uint32_t i : target.items) {
        const bool full =
            IsFull(part.items.size(), key_bytes) || bytes + items_[i].size > kPayloadPerMessageMax;
        if (full && !part.items.empty()) {
          cut.push_back(part);
          part.items.clear();
          bytes = key_bytes = 0;
        }
        part.items.push_back(i);
        bytes += items_[i].size;
        key_bytes += items_[i].ref.key.size();
      }
      cut.push_back(std::move(part));
    }
    WriteRemote(cut);
  }
}

bool PlacedWrite::WriteOwn(uint32_t i, const std::string& segment) {
  const WriteItem& item = items_[i];
  if (core_.membership.state() != NodeState::kActive) return false;
  obs::PhaseSpan span(core_.runtime, "data.local_write");
  span.items(1);
  bool would_block = false;
  ReserveRequest reserve{item.ref, item.size, soft_pin(), kSelf, core_.runtime.NowMs(), segment};
  // Moving a value evicts no other, neither now nor by reaching the high watermark.
  if (item.relocation != nullptr) reserve.fill_percent_max = core_.options.high_watermark_percent;
  obs::PhaseSpan room(core_.runtime, "control.allocate");
  room.items(1);
  ExtentPin pin = item.relocation != nullptr
                      ? core_.extents.Reserve(reserve)
                      : core_.evictor.Reserve(reserve, true, options_.deadline_ms, &would_block);
  if (!pin) room.result("error");
  room.End();
  if (!pin) return false;
  pin->SetChecksum(CopyIn(item.parts, pin->data()));
  copies_[i].checksum = pin->checksum();
  copies_[i].places.push_back(pin->place());
  copies_[i].own = std::move(pin);
  return true;
}

std::string PlacedWrite::WriteMessage(const Target& target) {
  v1::WriteRequest message;
  core_.peers.FillOrigin(true, message.mutable_origin());
  message.set_owner(view_->node(target.node).lease.id.ToString());
  WriteScope(core_.scopes.ScopeOf(items_[target.items[0]].ref.scope), message.mutable_scope());
  message.set_segment(target.segment);
  message.set_soft_pin(soft_pin());
  message.set_no_evict(items_[target.items[0]].relocation != nullptr);
  for (uint32_t i : target.items) {
    AddKey(items_[i].ref.key, message.mutable_keys());
    message.add_value_sizes(items_[i].size);
  }
  return message.SerializeAsString();
}

void PlacedWrite::WriteRemote(const std::vector<Target>& targets) {
  std::vector<std::unique_ptr<WriteObserver>> writes;
  std::vector<PeerCall> calls(targets.size());
  for (size_t t = 0; t < targets.size(); ++t) {
    writes.push_back(std::make_unique<WriteObserver>());
    for (uint32_t i : targets[t].items) writes[t]->plan.Add(items_[i].parts);
    calls[t].Address(view_->node(targets[t].node).lease);
    calls[t].type = MessageType::kWrite;
    calls[t].message = WriteMessage(targets[t]);
    calls[t].payload = writes[t]->plan.Seal();
    calls[t].deadline_ms = options_.deadline_ms;
    calls[t].observer = writes[t].get();
  }
  {
    obs::PhaseSpan span(core_.runtime, "data.transfer_write");
    span.peers(calls.size());
    core_.peers.CallMany(calls);
  }
  for (size_t t = 0; t < targets.size(); ++t) {
    if (!calls[t].status.ok()) {
      last_error_ = calls[t].status.error();
      continue;
    }
    const v1::WriteReply& reply = writes[t]->reply;
    core_.rooms.Heard(view_->node(targets[t].node), reply, core_.runtime.NowMs());
    int extent = 0;
    for (size_t k = 0; k < targets[t].items.size(); ++k) {
      if (static_cast<int>(k) >= reply.codes_size()) break;
      const ItemCode code = reply.codes(static_cast<int>(k));
      if (code != kItemOk) {
        if (code != kItemRetryLater) last_error_ = {ErrorCodeOf(code), "storage node is full"};
        continue;
      }
      if (extent >= reply.extents_size()) break;
      const auto place = ReadPlace(reply.extents(extent++), core_.names);
      if (!place) continue;
      Copies& copies = copies_[targets[t].items[k]];
      copies.places.push_back(*place);
      copies.checksum = writes[t]->plan.ChecksumOf(k);
    }
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

void PlacedWrite::GiveBack(uint32_t i) {
  Copies& copies = copies_[i];
  if (copies.own) core_.extents.Retire(*copies.own);
  for (const Place& place : copies.places) {
    if (place.owner != kSelf) core_.outbox.Retired(place);
  }
  copies.places.clear();
  copies.own = {};
}

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
    GiveBack(i);
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
    GiveBack(i);
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
    if (!rounds_.Answered(groups[g], error, whole, again)) continue;
    for (size_t k = 0; k < groups[g].items.size(); ++k) {
      const uint32_t i = groups[g].items[k];
      const ItemCode code = reply->codes(static_cast<int>(k));
      if (code == kItemOk) {
        Published(i, *reply, static_cast<int>(k));
      } else if (code == kItemRetryLater || code == kItemWrongAuthority) {
        rounds_.NoteCode(code, reply->revision());
        again->push_back(i);
      } else {
        GiveBack(i);
        (*statuses)[i] = PublishError(code, i);
      }
    }
  }
}

}  // namespace mooncake::node
