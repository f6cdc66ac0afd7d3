#include "node/query_op.h"

#include <map>

#include "node/authority.h"
#include "node/rounds.h"
#include "obs/phase_span.h"

namespace mooncake::node {

namespace {

// Asks the authorities of many keys until each has answered. Traits gives:
//   Request, Reply, Value; kType; kChanges;
//   static ItemCode Here(Core&, const KeyRef&, Value*)   this node's own answer,
//   static bool Whole(const Reply&, size_t items)        the reply is well formed,
//   static ItemCode Item(Core&, const Reply&, size_t k, size_t* cursor, Value*).
template <typename Traits>
class QueryOp {
 public:
  using Value = typename Traits::Value;

  QueryOp(Core& core, std::span<const KeyRef> refs, uint64_t deadline_ms)
      : core_(core), refs_(refs), rounds_(core, deadline_ms) {
    results_.reserve(refs.size());
    for (size_t i = 0; i < refs.size(); ++i) results_.emplace_back(Value{});
  }

  std::vector<Result<Value>> Run() {
    std::vector<uint32_t> pending;
    for (uint32_t i = 0; i < refs_.size(); ++i) {
      if (!Here(i)) pending.push_back(i);
    }
    while (!pending.empty()) {
      pending = Round(pending);
      if (pending.empty() || !rounds_.Again()) break;
      std::erase_if(pending, [this](uint32_t i) { return Here(i); });
    }
    for (uint32_t i : pending) results_[i] = rounds_.last_error();
    return std::move(results_);
  }

 private:
  void Set(uint32_t i, ItemCode code, Value value) {
    if (code == kItemOk) {
      results_[i] = std::move(value);
    } else {
      results_[i] =
          Error{ErrorCodeOf(code), std::string(refs_[i].key.substr(0, 128)), ErrorReasonOf(code)};
    }
  }

  bool Here(uint32_t i) {
    Value value{};
    const ItemCode code = Traits::Here(core_, refs_[i], &value);
    if (code == kItemRetryLater || code == kItemWrongAuthority) return false;
    Set(i, code, std::move(value));
    return true;
  }

  std::vector<uint32_t> Round(const std::vector<uint32_t>& pending) {
    std::vector<uint32_t> again;
    std::vector<AuthorityGroup> groups = rounds_.Group(refs_, pending, {}, &again);
    std::vector<const routing::ViewNode*> peers;
    std::vector<typename Traits::Request> requests;
    for (AuthorityGroup& group : groups) {
      peers.push_back(&rounds_.view()->node(group.node));
      auto& request = requests.emplace_back();
      if (Traits::kChanges) {
        rounds_.FillChange(group, request.mutable_origin());
      } else {
        core_.peers.FillOrigin(false, request.mutable_origin());
      }
      WriteScope(core_.scopes.ScopeOf(refs_[group.items[0]].scope), request.mutable_scope());
      for (uint32_t i : group.items) AddKey(refs_[i].key, request.mutable_keys());
    }
    obs::PhaseSpan span(core_.runtime, Traits::kChanges ? "control.rpc" : "control.route_lookup");
    span.items(pending.size());
    span.peers(peers.size());
    auto replies = core_.peers.AskMany<typename Traits::Reply, typename Traits::Request>(
        peers, Traits::kType, requests, rounds_.deadline_ms());
    for (size_t g = 0; g < groups.size(); ++g) Judge(groups[g], replies[g], &again);
    return again;
  }

  void Judge(const AuthorityGroup& group, const Result<typename Traits::Reply>& reply,
             std::vector<uint32_t>* again) {
    const bool whole = reply.ok() && Traits::Whole(*reply, group.items.size());
    const Error* const error = reply.ok() ? nullptr : &reply.error();
    if (!rounds_.Answered(group, error, whole, again)) return;
    size_t cursor = 0;
    for (size_t k = 0; k < group.items.size(); ++k) {
      const uint32_t i = group.items[k];
      Value value{};
      const ItemCode code = Traits::Item(core_, *reply, k, &cursor, &value);
      if (code == kItemRetryLater || code == kItemWrongAuthority) {
        rounds_.NoteCode(code, reply->revision());
        again->push_back(i);
      } else {
        Set(i, code, std::move(value));
      }
    }
  }

  Core& core_;
  std::span<const KeyRef> refs_;
  Rounds rounds_;
  std::vector<Result<Value>> results_;
};

struct Nothing {};

struct ExistTraits {
  using Request = v1::ExistRequest;
  using Reply = v1::ExistReply;
  using Value = Nothing;
  static constexpr MessageType kType = MessageType::kExist;
  static constexpr bool kChanges = false;
  static ItemCode Here(Core& core, const KeyRef& ref, Value*) {
    return core.routes.Explain(ref, core.routes.Lookup(ref, nullptr, nullptr));
  }
  static bool Whole(const Reply& reply, size_t items) { return reply.present().size() == items; }
  static ItemCode Item(Core&, const Reply& reply, size_t k, size_t*, Value*) {
    return CodeOfPresence(reply.present()[k]);
  }
};

struct RouteTraits {
  using Request = v1::RouteRequest;
  using Reply = v1::RouteReply;
  using Value = Route;
  static constexpr MessageType kType = MessageType::kRoute;
  static constexpr bool kChanges = false;
  static ItemCode Here(Core& core, const KeyRef& ref, Value* value) {
    return core.routes.Explain(ref, core.routes.Lookup(ref, value, nullptr));
  }
  static bool Whole(const Reply& reply, size_t items) {
    int routes = 0;
    for (ItemCode code : reply.codes()) routes += code == kItemOk;
    return static_cast<size_t>(reply.codes_size()) == items && routes == reply.routes_size();
  }
  static ItemCode Item(Core& core, const Reply& reply, size_t k, size_t* cursor, Value* value) {
    const ItemCode code = reply.codes(static_cast<int>(k));
    if (code != kItemOk) return code;
    const auto route = ReadRoute(reply.routes(static_cast<int>((*cursor)++)), core.names);
    if (!route) return CodeOf(ErrorCode::kTransport);
    *value = *route;
    return kItemOk;
  }
};

struct RemoveTraits {
  using Request = v1::RemoveRequest;
  using Reply = v1::RemoveReply;
  using Value = Nothing;
  static constexpr MessageType kType = MessageType::kRemove;
  static constexpr bool kChanges = true;
  static ItemCode Here(Core& core, const KeyRef& ref, Value*) { return RemoveRoute(core, ref); }
  static bool Whole(const Reply& reply, size_t items) {
    return static_cast<size_t>(reply.codes_size()) == items;
  }
  static ItemCode Item(Core&, const Reply& reply, size_t k, size_t*, Value*) {
    return reply.codes(static_cast<int>(k));
  }
};

std::vector<Status> StatusesOf(std::vector<Result<Nothing>> results) {
  std::vector<Status> statuses;
  statuses.reserve(results.size());
  for (Result<Nothing>& result : results) {
    statuses.push_back(result.ok() ? Ok() : Status(std::move(result).error()));
  }
  return statuses;
}

}  // namespace

std::vector<Status> ExistKeys(Core& core, std::span<const KeyRef> refs, uint64_t deadline_ms) {
  return StatusesOf(QueryOp<ExistTraits>(core, refs, deadline_ms).Run());
}

std::vector<Result<Route>> FindRoutes(Core& core, std::span<const KeyRef> refs,
                                      uint64_t deadline_ms) {
  return QueryOp<RouteTraits>(core, refs, deadline_ms).Run();
}

std::vector<Status> RemoveKeys(Core& core, std::span<const KeyRef> refs, uint64_t deadline_ms) {
  return StatusesOf(QueryOp<RemoveTraits>(core, refs, deadline_ms).Run());
}

Result<uint64_t> RemoveScope(Core& core, const routing::Scope& scope, uint64_t deadline_ms) {
  const auto entry = core.scopes.Intern(scope);
  if (!entry) return BackPressure("too many scopes");
  Rounds rounds(core, deadline_ms);
  std::map<NodeId, uint64_t> unanswered;  // The sequences of requests without an answer.
  uint64_t removed = 0;
  do {
    const routing::ClusterView& view = *rounds.view();
    std::vector<const routing::ViewNode*> peers;
    std::vector<v1::RemoveAllRequest> requests;
    for (const routing::ViewNode& node : view.nodes()) {
      if (node.lease.id == core.membership.self() || !node.authority) continue;
      peers.push_back(&node);
      v1::RemoveAllRequest& request = requests.emplace_back();
      core.peers.FillOrigin(true, request.mutable_origin());
      const auto before = unanswered.find(node.lease.id);
      if (before != unanswered.end()) request.mutable_origin()->set_sequence(before->second);
      WriteScope(scope, request.mutable_scope());
    }
    // All of one view, so that no key slips from one that was not asked yet to one that was.
    bool all = RemoveScopeHere(core, entry->index, &removed) == view.revision();
    if (!all) rounds.NoteCode(kItemRetryLater, 0);
    const auto replies = core.peers.AskMany<v1::RemoveAllReply, v1::RemoveAllRequest>(
        peers, MessageType::kRemoveAll, requests, deadline_ms);
    for (size_t i = 0; i < peers.size(); ++i) {
      const NodeId& peer = peers[i]->lease.id;
      const bool answered = replies[i].ok() && !replies[i]->still_running();
      if (!replies[i].ok()) rounds.NotePeerFailed(peer, replies[i].error());
      if (!answered) {
        unanswered[peer] = requests[i].origin().sequence();
        all = false;
        continue;
      }
      unanswered.erase(peer);
      removed += replies[i]->removed();
      // An older node does not tell the view that it answered in.
      const bool tells = peers[i]->lease.protocol_minor >= kMinorWithMigration;
      if (!tells || replies[i]->revision() == view.revision()) continue;
      rounds.NoteCode(kItemWrongAuthority, replies[i]->revision());
      all = false;
    }
    if (all) return removed;
  } while (rounds.Again());
  return rounds.last_error();
}

}  // namespace mooncake::node
