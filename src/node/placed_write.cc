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
      copies_(items.size()) {}

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
      Error error = copies.error.code != ErrorCode::kOk ? copies.error : NoRoom(core_, *view_);
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
  reserve.writer_until_ms = options_.deadline_ms;
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
    const routing::ViewNode& node = view_->node(targets[t].node);
    if (!calls[t].status.ok()) {
      NoteFailed(core_, node);
      for (uint32_t i : targets[t].items) copies_[i].error = calls[t].status.error();
      continue;
    }
    const v1::WriteReply& reply = writes[t]->reply;
    core_.rooms.Heard(node, reply, core_.runtime.NowMs());
    int extent = 0;
    for (size_t k = 0; k < targets[t].items.size(); ++k) {
      Copies& copies = copies_[targets[t].items[k]];
      if (static_cast<int>(k) >= reply.codes_size()) {
        copies.error = TransportError("a storage node did not end in time what it was sent");
        continue;
      }
      const ItemCode code = reply.codes(static_cast<int>(k));
      if (code != kItemOk) {
        if (code != kItemRetryLater) copies.error = {ErrorCodeOf(code), "storage node is full"};
        continue;
      }
      if (extent >= reply.extents_size()) break;
      const auto place = ReadPlace(reply.extents(extent++), core_.names);
      if (!place) continue;
      copies.places.push_back(*place);
      copies.checksum = writes[t]->plan.ChecksumOf(k);
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

}  // namespace mooncake::node
