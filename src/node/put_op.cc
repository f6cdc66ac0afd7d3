#include "node/put_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/hash.h"
#include "node/authority.h"
#include "node/evictor.h"
#include "node/outbox.h"
#include "node/payload.h"
#include "node/placed_write.h"
#include "node/placement.h"
#include "node/query_op.h"
#include "node/quota.h"
#include "node/rounds.h"
#include "obs/phase_span.h"

namespace mooncake::node {

namespace {

constexpr int kVainSearchesMax = 4;  // For room elsewhere, in one group.

Error PutError(ItemCode code, const WriteItem& item) {
  const std::string key(item.ref.key.substr(0, 128));
  if (code == CodeOf(ErrorCode::kNoSpace)) {
    return NoSpace(fmt::format("{}: no room for {} bytes", key, item.size));
  }
  if (code == CodeOf(ErrorCode::kConflict)) return OverQuota(item.ref, item.size);
  return {ErrorCodeOf(code), key};
}

// Sends values and their checksums, receives the codes.
class FusedPut : public CallObserver {
 public:
  explicit FusedPut(const WriteOptions& options) : options_(options) {}
  void OnSend(size_t piece, ConstBytes chunk) override { plan.OnSend(piece, chunk); }
  void OnRestart() override { plan.Restart(); }
  // A request without its checksums is not served: its values stay unseen, older ones untouched.
  uint64_t EndSize() const override { return options_.wanted ? plan.trailer_size() : 0; }
  Status OnEnd() override {
    given_up = !IsWanted(options_);
    return given_up ? Status(NotWanted()) : Ok();
  }
  Result<std::span<const MutableBytes>> OnReply(std::string_view message,
                                                uint64_t payload_size) override {
    const bool parsed = reply.ParseFromArray(message.data(), static_cast<int>(message.size()));
    if (payload_size != 0 || !parsed) return TransportError("malformed reply to a put");
    return std::span<const MutableBytes>();
  }

  GatherPlan plan;
  v1::PutReply reply;
  bool given_up = false;

 private:
  const WriteOptions& options_;
};

class PutOp {
 public:
  PutOp(Core& core, std::span<const WriteItem> items, const WriteOptions& options)
      : core_(core),
        items_(items),
        options_(options),
        rounds_(core, options.deadline_ms),
        statuses_(items.size()) {}

  std::vector<Status> Run() {
    std::vector<uint32_t> fused;
    std::vector<uint32_t> placed;
    const bool fuse = Fusible();
    const uint64_t largest = core_.extents.LargestSegment();
    {
      obs::PhaseSpan span(core_.runtime, "data.local_write");
      span.skip_when_empty();
      for (uint32_t i = 0; i < items_.size(); ++i) {
        if (fuse && PutHere(i, largest)) continue;
        (fuse ? fused : placed).push_back(i);
      }
      span.items(items_.size() - fused.size() - placed.size());
    }
    if (!fused.empty()) RunFused(std::move(fused), &placed);
    if (!placed.empty()) {
      AwaitStorage(items_[placed[0]], fuse);
      RunPlaced(placed, fuse);
    }
    return std::move(statuses_);
  }

 private:
  // Who is to take a value may have joined, or become what was asked for, a moment ago: where the
  // view does not have it, that is tried once more by a newer view, if there is one.
  void RunPlaced(const std::vector<uint32_t>& placed, bool authority_last) {
    const uint64_t revision = core_.view()->revision();
    std::vector<uint32_t> homeless;
    {
      PlacedWrite write(core_, items_, options_, authority_last);
      write.Run(placed, &statuses_);
      homeless = write.homeless();
    }
    if (homeless.empty() || !core_.options.routed_writes || !IsWanted(options_)) return;
    core_.membership.LookAgain(options_.deadline_ms);
    if (core_.view()->revision() == revision) return;
    for (uint32_t i : homeless) statuses_[i] = Ok();
    PlacedWrite(core_, items_, options_, authority_last).Run(homeless, &statuses_);
  }

  // As the authority of a key is waited for where all are suspect: perhaps the alarm was false.
  // Where one key has nowhere to go, none has.
  void AwaitStorage(const WriteItem& item, bool authority_last) {
    if (!core_.options.routed_writes) return;
    while (IsWanted(options_) && rounds_.view()->OnlySuspectsStore(core_.options.pool)) {
      const Placement placement =
          PlaceKey(core_, *rounds_.view(), item, options_.replicate, authority_last, nullptr);
      if (placement.refused.code != ErrorCode::kOk || !placement.candidates.empty()) return;
      rounds_.NoteNoStorage();
      if (!rounds_.Again()) return;
    }
  }

  bool Fusible() const {
    if (!core_.options.routed_writes) return false;
    const ReplicateConfig* policy = options_.replicate;
    if (policy == nullptr) return core_.options.replica_count <= 1;
    const bool local =
        (policy->prefer_local || policy->prefer_alloc_in_same_node) && core_.extents.has_segments();
    return policy->replica_num == 1 && policy->preferred_segments.empty() &&
           policy->preferred_storage_owners.empty() && !local;
  }

  bool soft_pin() const {
    return options_.replicate != nullptr && options_.replicate->with_soft_pin;
  }

  // This node is the authority and has room: no call at all. True: the item has its status.
  bool PutHere(uint32_t i, uint64_t largest) {
    const WriteItem& item = items_[i];
    if (item.size > largest || largest == 0) return false;
    if (core_.membership.state() != NodeState::kActive) return false;
    const ItemCode present = core_.routes.Lookup(item.ref, nullptr, nullptr);
    if (present == kItemWrongAuthority || present == kItemRetryLater) return false;
    if (present == kItemOk && options_.if_absent) return true;
    if (FillsThisNode(core_, item.size) && FitsElsewhere(i, routing::kNoNode)) return false;
    Charge charge;
    const ItemCode admitted = AdmitHere(item, &charge);
    if (admitted == kItemWrongAuthority || admitted == kItemRetryLater) return false;
    if (admitted != kItemOk) {
      statuses_[i] = PutError(admitted, item);
      return true;
    }
    bool would_block = false;
    const ReserveRequest reserve{item.ref, item.size, soft_pin(), kSelf, core_.runtime.NowMs(), {}};
    ExtentPin pin = core_.evictor.Reserve(reserve, true, options_.deadline_ms, &would_block);
    if (!pin) return false;
    pin->SetChecksum(CopyIn(item.parts, pin->data()));
    if (!IsWanted(options_)) {
      core_.extents.Retire(*pin);
      statuses_[i] = NotWanted();
      return true;
    }
    Publication publication;
    publication.size = item.size;
    publication.checksum = pin->checksum();
    publication.has_checksum = true;
    publication.soft_pin = soft_pin();
    publication.local = pin;
    publication.if_absent = options_.if_absent;
    Version version = 0;
    if (PublishRoute(core_, item.ref, std::move(publication), &version, &charge) == kItemOk) {
      return true;
    }
    core_.extents.Retire(*pin);  // The slot moved meanwhile: ask its new authority.
    return false;
  }

  bool FitsElsewhere(uint32_t i, routing::NodeIndex but) {
    return node::FitsElsewhere(core_, *rounds_.view(), items_[i].ref, items_[i].size, but);
  }

  // Before anything is evicted for it: whether its tenant may grow by it.
  ItemCode AdmitHere(const WriteItem& item, Charge* charge) {
    if (!HasQuota(core_, item.ref.scope)) return kItemOk;
    if (!admission_.patient) {
      admission_ = {.may_block = true, .patient = true, .deadline_ms = options_.deadline_ms};
      for (const WriteItem& each : items_) {
        if (!core_.routes.Serves(core_.routes.SlotOf(each.ref))) continue;
        admission_.ahead = admission_.ahead.Plus(LoadOf(each.size, 1));
      }
    }
    return Admit(core_, {item.ref, item.size, 1, options_.if_absent}, admission_, charge);
  }

  void RunFused(std::vector<uint32_t> pending, std::vector<uint32_t>* placed) {
    std::vector<KeyRef> refs;
    std::vector<uint64_t> sizes;
    for (const WriteItem& item : items_) {
      refs.push_back(item.ref);
      sizes.push_back(item.size);
    }
    const uint64_t largest = core_.extents.LargestSegment();
    bool sent = false;
    while (true) {
      SpillForeign(&pending, placed);
      if (pending.empty()) return;
      if (!IsWanted(options_)) {
        for (uint32_t i : pending) statuses_[i] = NotWanted();
        return;
      }
      std::vector<uint32_t> again;
      std::vector<AuthorityGroup> groups = rounds_.Group(refs, pending, sizes, &again);
      if (!std::exchange(sent, true)) SpillFull(&groups, placed);
      Send(groups, placed, &again);
      SpillOwn(largest, &again, placed);
      pending.swap(again);
      if (pending.empty()) return;
      if (!rounds_.Again()) break;
      std::erase_if(pending, [&](uint32_t i) { return PutHere(i, largest); });
      if (pending.empty()) return;
    }
    for (uint32_t i : pending) statuses_[i] = rounds_.last_error();
  }

  // Items whose authority is of another pool than the one that values keep to.
  void SpillForeign(std::vector<uint32_t>* pending, std::vector<uint32_t>* placed) {
    const std::string& pool = core_.options.pool;
    if (pool.empty()) return;
    std::erase_if(*pending, [&](uint32_t i) {
      const auto ranks = rounds_.view()->RanksOf(items_[i].ref.hash);
      if (ranks.empty() || rounds_.view()->node(ranks[0]).Label("pool") == pool) return false;
      placed->push_back(i);
      return true;
    });
  }

  // Items whose authority would have to push something out for them, and others would not. Only
  // those that were not sent yet: their outcome there would be unknown.
  void SpillFull(std::vector<AuthorityGroup>* groups, std::vector<uint32_t>* placed) {
    const uint64_t now_ms = core_.runtime.NowMs();
    for (AuthorityGroup& group : *groups) {
      const routing::ViewNode& node = rounds_.view()->node(group.node);
      int searches = 0;  // In vain: in a full cluster they are.
      std::erase_if(group.items, [&](uint32_t i) {
        if (searches >= kVainSearchesMax) return false;
        if (core_.rooms.Take(node, items_[i].size, now_ms)) return false;
        if (!FitsElsewhere(i, group.node)) {
          ++searches;
          return false;
        }
        placed->push_back(i);
        return true;
      });
    }
    std::erase_if(*groups, [](const AuthorityGroup& group) { return group.items.empty(); });
  }

  // Items that this node answers for (by now: it may have been taking their slots over) but cannot
  // store go to other owners.
  void SpillOwn(uint64_t largest, std::vector<uint32_t>* again, std::vector<uint32_t>* placed) {
    std::erase_if(*again, [&](uint32_t i) {
      if (!core_.routes.Serves(core_.routes.SlotOf(items_[i].ref))) return false;
      if (!PutHere(i, largest)) placed->push_back(i);
      return true;
    });
  }

  // Items to try again go to `again`, those without room at their authority to `placed`.
  void Send(std::vector<AuthorityGroup>& groups, std::vector<uint32_t>* placed,
            std::vector<uint32_t>* again) {
    std::vector<std::unique_ptr<FusedPut>> puts;
    std::vector<PeerCall> calls(groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      puts.push_back(std::make_unique<FusedPut>(options_));
      for (uint32_t i : groups[g].items) puts[g]->plan.Add(items_[i].parts);
      calls[g].Address(rounds_.view()->node(groups[g].node).lease);
      calls[g].type = MessageType::kPut;
      calls[g].message = Message(groups[g]);
      calls[g].payload = puts[g]->plan.Seal();
      calls[g].deadline_ms = options_.deadline_ms;
      calls[g].observer = puts[g].get();
    }
    {
      obs::PhaseSpan span(core_.runtime, "data.transfer_write");
      span.peers(calls.size());
      core_.peers.CallMany(calls);
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      if (puts[g]->given_up) {
        for (uint32_t i : groups[g].items) statuses_[i] = NotWanted();
        continue;
      }
      Judge(groups[g], calls[g], puts[g]->reply, placed, again);
    }
  }

  std::string Message(AuthorityGroup& group) {
    const std::vector<uint32_t>& items = group.items;
    v1::PutRequest message;
    rounds_.FillChange(group, message.mutable_origin());
    WriteScope(core_.scopes.ScopeOf(items_[items[0]].ref.scope), message.mutable_scope());
    message.set_if_absent(options_.if_absent);
    message.set_soft_pin(soft_pin());
    message.mutable_value_sizes()->Reserve(static_cast<int>(items.size()));
    for (uint32_t i : items) {
      AddKey(items_[i].ref.key, message.mutable_keys());
      message.add_value_sizes(items_[i].size);
    }
    return message.SerializeAsString();
  }

  void Judge(const AuthorityGroup& group, const PeerCall& call, const v1::PutReply& reply,
             std::vector<uint32_t>* placed, std::vector<uint32_t>* again) {
    const Error* const error = call.status.ok() ? nullptr : &call.status.error();
    const bool whole = reply.codes_size() == static_cast<int>(group.items.size());
    const routing::ViewNode& node = rounds_.view()->node(group.node);
    if (error != nullptr) NoteFailed(core_, node);
    core_.rooms.Heard(node, reply, core_.runtime.NowMs());
    if (!rounds_.Answered(group, error, whole, again)) return;
    for (size_t k = 0; k < group.items.size(); ++k) {
      const uint32_t i = group.items[k];
      const ItemCode code = reply.codes(static_cast<int>(k));
      if (code == kItemRetryLater || code == kItemWrongAuthority) {
        rounds_.NoteCode(code, reply.revision());
        again->push_back(i);
      } else if (code == CodeOf(ErrorCode::kNoSpace)) {
        placed->push_back(i);
      } else if (code != kItemOk) {
        statuses_[i] = PutError(code, items_[i]);
      }
    }
  }

  Core& core_;
  std::span<const WriteItem> items_;
  const WriteOptions& options_;
  Rounds rounds_;
  std::vector<Status> statuses_;
  Admission admission_;  // Of what this node answers for.
};

// Which items have to wait for the others. What counts is the last value of a key, or with
// `first_counts` the first one, where a present key stays as it is. Empty: no key is there twice.
// Keys of one hash may count as one.
std::vector<bool> LateItems(std::span<const WriteItem> items, bool first_counts) {
  std::vector<bool> late;
  if (items.size() < 2) return late;
  constexpr uint32_t kNone = ~uint32_t{0};
  std::vector<uint32_t> seen(std::bit_ceil(items.size() * 2), kNone);
  for (uint32_t n = 0; n < items.size(); ++n) {
    const uint32_t i = first_counts ? n : static_cast<uint32_t>(items.size()) - 1 - n;
    size_t place = base::Mix64(items[i].ref.hash) & (seen.size() - 1);
    while (seen[place] != kNone && items[seen[place]].ref.hash != items[i].ref.hash) {
      place = (place + 1) & (seen.size() - 1);
    }
    if (seen[place] == kNone) {
      seen[place] = i;
    } else {
      late.resize(items.size());
      late[first_counts ? i : seen[place]] = true;
    }
  }
  return late;
}

}  // namespace

// Items of one request take different ways, so those of one key might overtake each other.
std::vector<Status> WriteValues(Core& core, std::span<const WriteItem> items,
                                const WriteOptions& options) {
  const std::vector<bool> late = LateItems(items, options.if_absent);
  if (late.empty()) return PutOp(core, items, options).Run();
  std::vector<Status> statuses(items.size());
  for (const bool turn : {false, true}) {
    std::vector<WriteItem> some;
    std::vector<uint32_t> places;
    for (uint32_t i = 0; i < items.size(); ++i) {
      if (late[i] != turn) continue;
      some.push_back(items[i]);
      places.push_back(i);
    }
    std::vector<Status> written = PutOp(core, some, options).Run();
    for (size_t k = 0; k < places.size(); ++k) statuses[places[k]] = std::move(written[k]);
  }
  return statuses;
}

}  // namespace mooncake::node
