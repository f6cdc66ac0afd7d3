#include "node/read_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "node/payload.h"
#include "node/query_op.h"
#include "node/read_receiver.h"
#include "node/rounds.h"
#include "obs/phase_span.h"

namespace mooncake::node {

namespace {

// How often one item is looked up again because its bytes had moved or were not right.
constexpr int kTriesMax = 4;

Error ReadError(ItemCode code, const ReadItem& item, uint64_t size, bool ranged) {
  const std::string key(item.ref.key.substr(0, 128));
  if (code == CodeOf(ErrorCode::kTooSmall)) {
    if (ranged) {
      return TooSmall(fmt::format("{}: range [{}, +{}) is outside the value of {} bytes", key,
                                  item.offset, item.limit, size));
    }
    return TooSmall(fmt::format("{}: needs {} bytes, got {}", key, size, item.limit));
  }
  return {ErrorCodeOf(code), key, ErrorReasonOf(code)};
}

class ReadOp : public ReadPlan {
 public:
  ReadOp(Core& core, const ReadRequest& request)
      : core_(core), request_(request), rounds_(core, request.deadline_ms) {
    results_.reserve(request.items.size());
    for (size_t i = 0; i < request.items.size(); ++i) results_.emplace_back(uint64_t{0});
  }

  std::vector<Result<uint64_t>> Run() {
    std::vector<uint32_t> pending(request_.items.size());
    for (uint32_t i = 0; i < pending.size(); ++i) pending[i] = i;
    ReadLocal(&pending);
    if (pending.empty()) return Done();
    state_.resize(request_.items.size());
    while (!pending.empty()) {
      pending = Round(pending);
      if (pending.empty()) break;
      if (!rounds_.Again()) break;
      ReadLocal(&pending);
    }
    for (uint32_t i : pending) {
      if (!results_[i].ok()) continue;  // What its peers have answered stands.
      Error error = rounds_.last_error();
      if (state_[i].reason != ErrorReason::kUnspecified) error.reason = state_[i].reason;
      results_[i] = std::move(error);
    }
    return Done();
  }

  std::vector<Result<uint64_t>> Done() {
    uint64_t right = 0;
    for (const Result<uint64_t>& result : results_) right += result.ok() ? 1 : 0;
    // Ranges are parts of what the checksums are of.
    if (!request_.ranged && right > 0) core_.checksums_right.Add(right);
    return std::move(results_);
  }

  // --- ReadPlan -----------------------------------------------------------------
  NameTable& names() override { return core_.names; }
  const ReadItem& item(uint32_t i) const override { return request_.items[i]; }
  bool ranged() const override { return request_.ranged; }
  const Route& known_route(uint32_t i) const override { return state_[i].route; }
  std::optional<std::span<const MutableBytes>> TargetsOf(uint32_t i, uint64_t size) override {
    if (!request_.allocate) {
      if (size > request_.items[i].limit) return std::nullopt;
      return request_.items[i].targets;
    }
    if (allocated_.empty()) allocated_.resize(request_.items.size());
    Allocation& known = allocated_[i];
    if (known.memory && known.memory->size() == size) return std::span(&*known.memory, 1);
    known.memory = request_.allocate(i, size);
    if (!known.memory || known.memory->size() < size) return std::nullopt;
    return std::span(&*known.memory, 1);
  }

 private:
  struct State {
    Route route;
    int tries = 0;
    uint64_t tried_replicas = 0;  // Bit per replica of the route.
    // Why it could not be read.
    ErrorCode failed = ErrorCode::kTransport;
    ErrorReason reason = ErrorReason::kUnspecified;
    bool gone = true;  // All of those have gone: not merely silent, or wrong.
  };
  struct Allocation {
    std::optional<MutableBytes> memory;
  };

  // Reads what this node is the authority of, wherever the bytes are: from all of their owners
  // at once. Leaves the items without a result.
  void ReadLocal(std::vector<uint32_t>* items) {
    std::vector<uint32_t> routed;
    const size_t asked = items->size();
    obs::PhaseSpan span(core_.runtime, "data.local_read");
    span.skip_when_empty();
    std::erase_if(*items, [&](uint32_t i) { return TryLocal(i, &routed); });
    span.items(asked - items->size() - routed.size());
    span.End();
    ReadRouted(&routed);
    items->insert(items->end(), routed.begin(), routed.end());
  }

  // True: the item has its result, or its route, and is in `routed`.
  bool TryLocal(uint32_t i, std::vector<uint32_t>* routed) {
    ExtentPin pin;
    const ReadItem& item = request_.items[i];
    const ItemCode code = core_.routes.Lookup(item.ref, nullptr, &pin);
    if (code == kItemRetryLater || code == kItemWrongAuthority) return false;
    if (code != kItemOk) {
      results_[i] = ReadError(core_.routes.Explain(item.ref, code), item, 0, request_.ranged);
      return true;
    }
    const bool here = bool{pin};
    if (here && CopyLocal(i, std::move(pin))) return true;
    if (state_.empty()) state_.resize(request_.items.size());
    if (core_.routes.Lookup(item.ref, &state_[i].route, nullptr) != kItemOk) return false;
    if (!here && request_.versions && item.known != 0 && item.known == state_[i].route.version) {
      SetUnchanged(i, state_[i].route.size);
      return true;
    }
    StartRoute(i);
    if (here) NoteWrong(i, kSelf);
    routed->push_back(i);
    return true;
  }

  void StartRoute(uint32_t i) {
    state_[i].tried_replicas = 0;
    state_[i].gone = true;
  }

  void SetUnchanged(uint32_t i, uint64_t size) {
    request_.items[i].unchanged = true;
    results_[i] = size;
  }

  // The bytes that `owner` has are not those that were put. Other replicas may be right.
  void NoteWrong(uint32_t i, NameIndex owner) {
    core_.metrics.GetCounter("checksum_validation_total", {{"result", "mismatch"}}).Increment();
    State& state = state_[i];
    state.failed = ErrorCode::kChecksum;
    state.gone = false;
    for (size_t r = 0; r < std::min<size_t>(state.route.replicas.size(), 64); ++r) {
      if (state.route.replicas[r].owner == owner) state.tried_replicas |= 1ULL << r;
    }
  }

  void SetVersion(uint32_t i, Version version, uint64_t checksum) {
    if (!request_.versions) return;
    request_.items[i].version = version;
    request_.items[i].checksum = checksum;
  }

  // False: the bytes are wrong. Else the item has its result.
  bool CopyLocal(uint32_t i, ExtentPin pin) {
    Extent& extent = *pin;
    const ReadItem& item = request_.items[i];
    ConstBytes bytes = extent.data();
    const uint64_t whole = bytes.size();
    if (request_.ranged) {
      if (item.offset > whole || item.limit > whole - item.offset) {
        results_[i] = ReadError(CodeOf(ErrorCode::kTooSmall), item, whole, true);
        return true;
      }
      bytes = bytes.subspan(item.offset, item.limit);
    }
    if (request_.adopt && bytes.size() <= item.limit) {
      extent.Touch();
      results_[i] = bytes.size();
      request_.adopt(i, std::move(pin));
      return true;
    }
    const auto targets = TargetsOf(i, bytes.size());
    if (!targets) {
      results_[i] = ReadError(CodeOf(ErrorCode::kTooSmall), item, whole, false);
      return true;
    }
    const uint64_t checksum = CopyOut(bytes, *targets);
    extent.Touch();
    if (!request_.ranged && extent.has_checksum() && checksum != extent.checksum()) return false;
    results_[i] = bytes.size();
    return true;
  }

  bool CopyOwn(uint32_t i, const Place& place) {
    ExtentPin pin = core_.extents.Find(place.segment, place.offset, place.generation);
    if (!pin) return false;
    const bool copied = CopyLocal(i, std::move(pin));
    if (!copied) NoteWrong(i, kSelf);
    return copied;
  }

  // One try of all pending items; returns those to try again.
  std::vector<uint32_t> Round(const std::vector<uint32_t>& pending) {
    std::vector<KeyRef> refs;
    refs.reserve(request_.items.size());
    for (const ReadItem& item : request_.items) refs.push_back(item.ref);
    std::vector<uint64_t> sizes;
    if (!request_.allocate) {
      for (const ReadItem& item : request_.items) sizes.push_back(item.limit);
    }
    std::vector<uint32_t> again;
    const std::vector<AuthorityGroup> groups = rounds_.Group(refs, pending, sizes, &again);
    std::vector<std::unique_ptr<ReadReceiver>> receivers;
    std::vector<PeerCall> calls(groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      receivers.push_back(std::make_unique<ReadReceiver>(*this, groups[g].items, false));
      calls[g].Address(rounds_.view()->node(groups[g].node).lease);
      calls[g].type = MessageType::kGet;
      calls[g].message = GetMessage(groups[g].items);
      calls[g].deadline_ms = request_.deadline_ms;
      calls[g].observer = receivers[g].get();
    }
    {
      obs::PhaseSpan span(core_.runtime, "data.transfer_read");
      span.items(pending.size());
      span.peers(calls.size());
      core_.peers.CallMany(calls);
    }
    std::vector<uint32_t> routed;
    for (size_t g = 0; g < groups.size(); ++g) {
      Judge(groups[g], calls[g], *receivers[g], &routed, &again);
    }
    ReadRouted(&routed);
    if (!routed.empty()) rounds_.NoteOthers();
    again.insert(again.end(), routed.begin(), routed.end());
    return again;
  }

  std::string GetMessage(const std::vector<uint32_t>& items) {
    v1::GetRequest message;
    core_.peers.FillOrigin(false, message.mutable_origin());
    WriteScope(core_.scopes.ScopeOf(request_.items[items[0]].ref.scope), message.mutable_scope());
    message.set_has_storage(core_.extents.has_segments());
    message.mutable_limits()->Reserve(static_cast<int>(items.size()));
    for (uint32_t i : items) {
      const ReadItem& item = request_.items[i];
      AddKey(item.ref.key, message.mutable_keys());
      // The range's own size, or anything: the memory for it is yet to be asked for.
      message.add_limits(request_.allocate && !request_.ranged ? ~uint64_t{0} : item.limit);
      if (request_.ranged) message.add_offsets(item.offset);
      if (request_.versions) message.add_known_versions(item.known);
    }
    return message.SerializeAsString();
  }

  void Judge(const AuthorityGroup& group, const PeerCall& call, ReadReceiver& receiver,
             std::vector<uint32_t>* routed, std::vector<uint32_t>* again) {
    for (uint32_t i : group.items) results_[i] = uint64_t{0};
    const Error* const error = call.status.ok() ? nullptr : &call.status.error();
    if (error != nullptr) {
      for (uint32_t i : group.items) NoteReason(i, error->reason);
    }
    if (!rounds_.Answered(group, error, true, again)) return;
    std::vector<uint32_t> wrong;
    for (size_t k = 0; k < group.items.size(); ++k) {
      const uint32_t i = group.items[k];
      const ItemCode code = receiver.codes[k];
      if (code == kItemRetryLater || code == kItemWrongAuthority) {
        rounds_.NoteCode(code, receiver.revision);
        again->push_back(i);
      } else if (code == kItemUnchanged && request_.versions) {
        SetUnchanged(i, receiver.sizes[k]);
      } else if (code != kItemOk) {
        results_[i] = ReadError(code, request_.items[i], receiver.sizes[k], request_.ranged);
      } else if (receiver.routes[k]) {
        state_[i].route = *std::move(receiver.routes[k]);
        StartRoute(i);
        routed->push_back(i);
      } else if (receiver.Right(k)) {
        results_[i] = request_.ranged ? request_.items[i].limit : receiver.sizes[k];
        if (!receiver.versions.empty()) SetVersion(i, receiver.versions[k], receiver.checksums[k]);
      } else {
        wrong.push_back(i);
      }
    }
    if (!wrong.empty()) LookElsewhere(call.peer, wrong, routed);
  }

  // Finds the other replicas of items of which the authority's own are wrong.
  void LookElsewhere(const NodeId& authority, const std::vector<uint32_t>& wrong,
                     std::vector<uint32_t>* routed) {
    std::vector<KeyRef> refs;
    refs.reserve(wrong.size());
    for (uint32_t i : wrong) refs.push_back(request_.items[i].ref);
    auto routes = FindRoutes(core_, refs, request_.deadline_ms);
    for (size_t k = 0; k < wrong.size(); ++k) {
      state_[wrong[k]].route = routes[k].ok() ? *std::move(routes[k]) : Route{};
      StartRoute(wrong[k]);
      NoteWrong(wrong[k], core_.names.IndexOf(authority.ToString()).value_or(kSelf));
      routed->push_back(wrong[k]);
    }
  }

  // Reads from owners. Leaves in `items` those that need a fresh route; the others have results.
  void ReadRouted(std::vector<uint32_t>* items);
  std::optional<size_t> NextReplica(uint32_t i);
  void ReadFromOwners(const std::map<NameIndex, std::vector<uint32_t>>& by_owner,
                      const std::vector<size_t>& replica, std::vector<uint32_t>* unread);
  // A peer that was silent is left alone by the next tries: the silence stays the reason.
  void NoteReason(uint32_t i, ErrorReason reason) {
    if (state_[i].reason != ErrorReason::kTimeout) state_[i].reason = reason;
  }
  std::string PlaceMessage(NameIndex owner, const std::vector<uint32_t>& items,
                           const std::vector<size_t>& replica);

  Core& core_;
  const ReadRequest& request_;
  Rounds rounds_;
  std::vector<Result<uint64_t>> results_;
  std::vector<State> state_;
  std::vector<Allocation> allocated_;
};

std::optional<size_t> ReadOp::NextReplica(uint32_t i) {
  State& state = state_[i];
  const std::vector<Place>& replicas = state.route.replicas;
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t r = 0; r < std::min<size_t>(replicas.size(), 64); ++r) {
      if ((state.tried_replicas >> r) & 1) continue;
      // Ours first, it needs no network.
      if (pass == 0 && replicas[r].owner != kSelf) continue;
      state.tried_replicas |= 1ULL << r;
      return r;
    }
  }
  return std::nullopt;
}

void ReadOp::ReadRouted(std::vector<uint32_t>* items) {
  std::vector<uint32_t> unread;
  unread.swap(*items);
  std::vector<size_t> replica(request_.items.size());
  for (int pass = 0; pass < 64 && !unread.empty(); ++pass) {
    std::map<NameIndex, std::vector<uint32_t>> by_owner;
    obs::PhaseSpan span(core_.runtime, "control.readable_replica_select");
    span.items(unread.size());
    for (uint32_t i : unread) {
      const std::optional<size_t> next = NextReplica(i);
      if (!next) {
        // Every replica failed. A fresh route may name others; if not, this is the answer. A dead
        // owner's values are missed as soon as that is known here, not when its lease lapses.
        const std::string key(request_.items[i].ref.key.substr(0, 128));
        const State& state = state_[i];
        results_[i] = state.gone
                          ? Error{ErrorCode::kNotFound, key, state.reason}
                          : Error{state.failed, key + ": no replica could be read", state.reason};
        if (++state_[i].tries < kTriesMax) items->push_back(i);
        continue;
      }
      replica[i] = *next;
      by_owner[state_[i].route.replicas[*next].owner].push_back(i);
    }
    span.peers(by_owner.size());
    span.End();
    unread.clear();
    ReadFromOwners(by_owner, replica, &unread);
  }
}

std::string ReadOp::PlaceMessage(NameIndex owner, const std::vector<uint32_t>& items,
                                 const std::vector<size_t>& replica) {
  v1::ReadRequest message;
  core_.peers.FillOrigin(false, message.mutable_origin());
  message.set_owner(core_.names.NameOf(owner));
  for (uint32_t i : items) {
    const ReadItem& item = request_.items[i];
    const Place& place = state_[i].route.replicas[replica[i]];
    v1::Replica& extent = *message.add_extents();
    extent.set_segment(place.segment);
    extent.set_offset(place.offset);
    extent.set_generation(place.generation);
    message.add_key_hashes(item.ref.hash);
    message.add_offsets(request_.ranged ? item.offset : 0);
    message.add_sizes(request_.ranged ? item.limit : state_[i].route.size);
  }
  return message.SerializeAsString();
}

void ReadOp::ReadFromOwners(const std::map<NameIndex, std::vector<uint32_t>>& by_owner,
                            const std::vector<size_t>& replica, std::vector<uint32_t>* unread) {
  const ViewPtr view = core_.view();
  std::vector<PeerCall> calls;
  std::vector<std::unique_ptr<ReadReceiver>> receivers;
  std::vector<const std::vector<uint32_t>*> asked;
  std::vector<std::vector<uint32_t>> checked;  // Items that fit, per owner; stable addresses.
  checked.reserve(by_owner.size());
  for (const auto& [owner, items] : by_owner) {
    std::vector<uint32_t>& fitting = checked.emplace_back();
    for (uint32_t i : items) {
      const ReadItem& item = request_.items[i];
      const uint64_t size = state_[i].route.size;
      const bool outside = request_.ranged ? item.offset > size || item.limit > size - item.offset
                                           : !request_.allocate && size > item.limit;
      if (outside) {
        results_[i] = ReadError(CodeOf(ErrorCode::kTooSmall), item, size, request_.ranged);
        continue;
      }
      if (owner == kSelf) {
        if (!CopyOwn(i, state_[i].route.replicas[replica[i]])) unread->push_back(i);
        continue;
      }
      fitting.push_back(i);
    }
    if (fitting.empty()) continue;
    const routing::NodeIndex index = view->FindName(core_.names.NameOf(owner));
    if (index == routing::kNoNode) {
      rounds_.NoteUnknownOwner();
      for (uint32_t i : fitting) NoteReason(i, ErrorReason::kOwnerDead);
      unread->insert(unread->end(), fitting.begin(), fitting.end());
      continue;
    }
    asked.push_back(&fitting);
    receivers.push_back(std::make_unique<ReadReceiver>(*this, fitting, true));
    PeerCall& call = calls.emplace_back();
    call.Address(view->node(index).lease);
    call.type = MessageType::kRead;
    call.message = PlaceMessage(owner, fitting, replica);
    call.deadline_ms = request_.deadline_ms;
    call.observer = receivers.back().get();
  }
  if (calls.empty()) return;
  obs::PhaseSpan span(core_.runtime, "data.transfer_read_fallback");
  span.peers(calls.size());
  core_.peers.CallMany(calls);
  for (size_t c = 0; c < calls.size(); ++c) {
    for (size_t k = 0; k < asked[c]->size(); ++k) {
      const uint32_t i = (*asked[c])[k];
      const bool served = calls[c].status.ok() && receivers[c]->codes[k] == kItemOk;
      if (served && receivers[c]->Right(k)) {
        results_[i] = request_.ranged ? request_.items[i].limit : state_[i].route.size;
        SetVersion(i, state_[i].route.version, state_[i].route.checksum);
        continue;
      }
      unread->push_back(i);
      if (served) {
        NoteWrong(i, state_[i].route.replicas[replica[i]].owner);
      } else if (!calls[c].status.ok()) {
        if (!calls[c].gone) state_[i].gone = false;  // Merely silent.
        state_[i].failed = ErrorCode::kTransport;
        NoteReason(i, calls[c].status.error().reason);
      }
    }
  }
}

}  // namespace

std::vector<Result<uint64_t>> ReadValues(Core& core, const ReadRequest& request) {
  return ReadOp(core, request).Run();
}

}  // namespace mooncake::node
